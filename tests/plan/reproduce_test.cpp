// The published experiments, as they are predicted.
#include "millrace/plan/reproduce.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "millrace/graph/fuse.h"
#include "millrace/model/model.h"
#include "millrace/plan/roofline.h"

namespace millrace::plan {
namespace {

class Reproduce : public testing::Test {
 protected:
  static const std::map<std::string, Reproduced>& rows() {
    static const std::map<std::string, Reproduced> all = [] {
      std::map<std::string, Reproduced> found;
      for (const Reproduced& row : reproduce(false).rows) found[row.published.id] = row;
      return found;
    }();
    return all;
  }
  static double speed(const std::string& id) { return rows().at(id).samples_per_s.value(); }
};

TEST_F(Reproduce, EveryPublishedRowIsThere) {
  EXPECT_EQ(rows().size(), 31u);
  for (const auto& [id, row] : rows()) EXPECT_TRUE(row.samples_per_s || !row.note.empty()) << id;
}

TEST_F(Reproduce, DataParallelRowsAreWithinFifteenPercent) {
  for (const char* id : {"of_alexnet_dp_8r_b256", "of_vgg_dp_8r_b32", "of_rn50_fp16_8", "of_rn50_fp16_16",
                         "of_rn50_fp16_32", "of_rn50_dp", "of_rn50_ssp1"}) {
    EXPECT_FALSE(rows().at(id).calibrates) << id;
    EXPECT_NEAR(rows().at(id).ratio().value(), 1, 0.15) << id;
  }
}

TEST_F(Reproduce, RowsOfTransformersArePredictedFromOneOfThem) {
  EXPECT_TRUE(rows().at("pt_vit_ddp_4gpu").calibrates);
  EXPECT_NEAR(rows().at("pt_vit_ddp_4gpu").ratio().value(), 1, 0.01);
  EXPECT_NEAR(rows().at("pt_vit_pipe_4gpu").ratio().value(), 1, 0.15);
  // Eight stages and eight micro-batches leave more than a third of the time to bubbles.
  EXPECT_LT(speed("pt_vit_nofreeze"), 2 * speed("pt_vit_ddp_4gpu") * 8 / 15 * 1.1);
}

TEST_F(Reproduce, SingleDeviceRowsAreMetByConstruction) {
  for (const char* id : {"of_alexnet_dp_1r_b256", "of_vgg_dp_1r_b32", "of_rn50_fp16_1"}) {
    EXPECT_TRUE(rows().at(id).calibrates) << id;
    EXPECT_NEAR(rows().at(id).ratio().value(), 1, 0.01) << id;
  }
}

TEST_F(Reproduce, StalenessByStageKeepsThePublishedOrder) {
  EXPECT_GT(speed("of_alexnet_ssp_8r_b256_10"), speed("of_alexnet_dp_8r_b256"));
  EXPECT_GT(speed("of_alexnet_dp_8r_b256"), speed("of_alexnet_ssp_8r_b256_3_false"));
}

TEST(ProjectElastic, EveryEpochHasThePlanOfWhatStillLearns) {
  const auto& all = published_experiments();
  const auto row =
      std::find_if(all.begin(), all.end(), [](const Published& one) { return one.id == "pt_vit_nofreeze"; });
  ASSERT_NE(row, all.end());
  const graph::Graph graph = model::training_graph(job_of(*row), 1);
  const std::vector<profile::Profile> profiles{
      roofline_profile(graph::fuse(model::build(job_of(*row).model, 64, 0)), {5e12, 448e9, 4, 0})};
  const ElasticProjection projected = project_elastic(*row, {"1/2", 0.5, 3.86}, profiles, published_cluster(*row));
  ASSERT_EQ(projected.epochs.size(), 10u);
  const std::vector<int> frozen{0, 6, 9, 11, 12, 12, 12, 12, 12, 12};
  for (size_t i = 0; i < frozen.size(); ++i) {
    const ProjectedEpoch& epoch = projected.epochs[i];
    EXPECT_EQ(epoch.frozen, frozen[i]) << i;
    EXPECT_EQ(epoch.kept, i == 0 ? 0 : frozen[i - 1]) << i;
    if (i > 0) {
      EXPECT_GE(epoch.samples_per_s, projected.epochs[i - 1].samples_per_s) << i;
    }
  }
  EXPECT_EQ(projected.epochs[0].samples_per_s, projected.static_samples_per_s);
  double seconds = 0;
  for (const ProjectedEpoch& epoch : projected.epochs) seconds += 1 / epoch.samples_per_s;
  EXPECT_NEAR(projected.gain(), 10 / projected.static_samples_per_s / seconds, 1e-9);
  EXPECT_GT(projected.gain(), 3.86);
}

TEST_F(Reproduce, WhatIsFarOffHasACause) {
  for (const auto& [id, row] : rows()) {
    const bool far = row.ratio() && std::abs(*row.ratio() - 1) > 0.15;
    EXPECT_TRUE(!far || !row.note.empty()) << id;
  }
}

}  // namespace
}  // namespace millrace::plan
