#include "millrace/plan/filling_cache.h"

#include <gtest/gtest.h>

#include "millrace/graph/fuse.h"
#include "millrace/model/model.h"
#include "millrace/plan/roofline.h"

namespace millrace::plan {
namespace {

// Six of twelve layers stand still, on one device of 100 GFLOP/s.
class FillingCache : public testing::Test {
 protected:
  FillingCache() {
    job_.model.name = "vit_s_16";
    job_.model.classes = 10;
    job_.model.image_size = 32;
    job_.model.frozen = 6;
    job_.batch = 8;
    job_.steps = 1;
    job_.data.train_samples = 64;
    job_.elastic.cache = true;
    profiles_.push_back(roofline_profile(graph::fuse(model::build(job_.model, job_.batch, 0)), {1e11, 2e10, 4, 0}));
    cluster_.devices.push_back({{0, 0}, "core", int64_t{1} << 36, 1});
    plan_ = make_plan(job_, model::training_graph(job_, 1), 1);
  }
  double filling_s(int kept) const { return predict_filling(job_, plan_, profiles_, cluster_, kept).step_s; }
  double filled_s() const { return predict(job_, plan_, profiles_, cluster_).step_s; }
  // Of layers `from` to `to` - 1, as they were measured.
  double forward_s(int from, int to) const {
    const graph::Graph graph = model::training_graph(job_, 1);
    double seconds = 0;
    for (size_t i = 0; i < graph.ops.size(); ++i) {
      if (graph.ops[i].depth > from && graph.ops[i].depth <= to) seconds += profiles_[0].operators[i].forward.median;
    }
    return seconds;
  }

  job::Job job_;
  std::vector<profile::Profile> profiles_;
  Cluster cluster_;
  Plan plan_;
};

TEST_F(FillingCache, ComputesWhatWasNotKeptOnceMore) {
  for (const int kept : {1, 3, 5}) {
    EXPECT_GT(forward_s(kept, 6), 0);
    EXPECT_NEAR(filling_s(kept) - filled_s(), forward_s(kept, 6), 1e-9) << kept;
  }
}

TEST_F(FillingCache, WithNothingKeptTakesAsLongAsWithoutACache) {
  const double first_s = filling_s(0);
  job_.elastic.cache = false;
  EXPECT_DOUBLE_EQ(first_s, filled_s());
}

TEST_F(FillingCache, WithAllKeptTakesAsLongAsAFullOne) { EXPECT_DOUBLE_EQ(filling_s(6), filled_s()); }

}  // namespace
}  // namespace millrace::plan
