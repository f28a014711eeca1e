// Layers that stand still: their parameters do not change, the others learn as if nothing had been frozen, and it makes
// no difference where the model is cut.
#include <gtest/gtest.h>

#include "millrace/model/model.h"
#include "runtime/training_harness.h"

namespace millrace::runtime {
namespace {

struct Model {
  std::string name;
  job::Job job;
  int frozen = 1;
};

job::Job on(job::Job job, job::Mode mode, const std::string& placement) {
  job.parallel.mode = mode;
  job.parallel.placement = placement;
  return job;
}

std::vector<Model> models() {
  job::Job vit = small_job();
  vit.model = small_vit(16, 12, 3);
  vit.model.layers = 4;
  vit.optimizer.lr = 0.02;
  job::Job gpt = small_job();
  gpt.model = {
      .name = "gpt2", .dropout = 0.1, .width = 12, .layers = 3, .heads = 2, .mlp = 20, .vocabulary = 40, .tokens = 9};
  gpt.data = {.kind = job::DataKind::Synthetic, .train_samples = 26};
  gpt.optimizer.lr = 0.01;
  gpt.optimizer.clip_norm = 0.5;
  job::Job resnet = small_job();
  resnet.model = {.name = "resnet_small", .classes = 10, .image_size = 8};
  return {{"alexnet", small_job(), 3}, {"vit", vit, 2}, {"gpt2", gpt, 2}, {"resnet", resnet, 1}};
}

int depth_of(const graph::Graph& graph, const std::string& name) {
  for (const graph::Param& param : graph.params) {
    if (param.name == name) return param.depth;
  }
  return -1;
}

TEST(Frozen, ParametersStandStillAndTheRestLearns) {
  for (Model& model : models()) {
    SCOPED_TRACE(model.name);
    model.job.model.frozen = model.frozen;
    const graph::Graph graph = model::training_graph(model.job, 1);
    const state::State before = state::initial_state(graph, model.job.seed);
    const RunResult ran = run(model.job);
    int still = 0, learnt = 0;
    for (const auto& [name, tensor] : ran.state.params) {
      if (depth_of(graph, name) <= model.frozen) {
        EXPECT_TRUE(tensor == before.params.at(name)) << name;
        EXPECT_FALSE(ran.state.velocity.contains(name)) << name;
        ++still;
      } else {
        learnt += tensor == before.params.at(name) ? 0 : 1;
      }
    }
    EXPECT_GT(still, 0);
    EXPECT_GT(learnt, 0);
    EXPECT_EQ(ran.state.params.size(), before.params.size());
  }
}

// Without dropout and running statistics a frozen layer computes what it always did.
TEST(Frozen, TheFirstStepOfTheRestIsThatOfTheWholeModel) {
  for (Model& model : models()) {
    SCOPED_TRACE(model.name);
    if (model.name == "resnet" || model.name == "gpt2") continue;  // statistics; a head that stands still too
    model.job.model.dropout = 0;
    model.job.steps = 1;
    const RunResult whole = run(model.job);
    model.job.model.frozen = model.frozen;
    const RunResult frozen = run(model.job);
    EXPECT_EQ(frozen.losses, whole.losses);
    const graph::Graph graph = model::training_graph(model.job, 1);
    for (const auto& [name, tensor] : frozen.state.params) {
      if (depth_of(graph, name) <= model.frozen) continue;
      EXPECT_TRUE(tensor == whole.state.params.at(name)) << name;
    }
  }
}

TEST(Frozen, StagesAreTheSameAsOneWorker) {
  for (Model& model : models()) {
    model.job.model.frozen = model.frozen;
    model.job.parallel.microbatches = 2;
    model.job.steps = 3;
    const RunResult alone = run(model.job);
    for (const job::Mode mode : {job::Mode::OneFOneB, job::Mode::GPipe}) {
      for (int stages : {2, 3, 4}) {
        SCOPED_TRACE(testing::Message() << model.name << ", " << stages << " stages, mode " << static_cast<int>(mode));
        const RunResult many = run(on(model.job, mode, straight(stages)));
        EXPECT_EQ(many.losses, alone.losses);
        EXPECT_TRUE(many.state == alone.state);
      }
    }
    if (model.name == "resnet") continue;  // statistics of half a batch
    SCOPED_TRACE(model.name);
    EXPECT_LT(largest_difference(run(on(model.job, job::Mode::Dp, "0:0-1")).state, alone.state), 1e-6);
    EXPECT_LT(largest_difference(run(on(model.job, job::Mode::OneFOneB, "0:0-1.0:2-3")).state, alone.state), 1e-6);
  }
}

// A stage that stands still gets no gradient, sums none and updates nothing.
TEST(Frozen, AFrozenStageOnlyGoesForward) {
  Model vit = models()[1];
  vit.job.parallel.microbatches = 2;
  vit.job.parallel.cuts = {"vit.encoder.layer.2.layernorm_before"};
  const auto counted = [&](int frozen) {
    job::Job job = on(vit.job, job::Mode::OneFOneB, "0:0.0:1");
    job.model.frozen = frozen;
    const auto process = comm::make_local_process();
    Training training(job, *process, {});
    training.run({});
    std::map<Activity, int> activities;
    for (const Span& span : training.worker(0).timeline().spans()) ++activities[span.activity];
    return activities;
  };
  std::map<Activity, int> learns = counted(1), stands = counted(2);
  EXPECT_EQ(stands[Activity::Forward], learns[Activity::Forward]);
  EXPECT_GT(learns[Activity::InputGrad] + learns[Activity::WeightGrad], 0);
  EXPECT_EQ(stands[Activity::InputGrad] + stands[Activity::WeightGrad], 0);
}

TEST(Frozen, MemoryIsLess) {
  Model vit = models()[1];
  size_t before = run(vit.job).planned_bytes;
  for (int frozen : {1, 2, 3, 4}) {
    vit.job.model.frozen = frozen;
    const size_t bytes = run(vit.job).planned_bytes;
    EXPECT_LT(bytes, before) << frozen;
    before = bytes;
  }
}

TEST(Frozen, MoreThanThereIsIsRefused) {
  job::Job job = models()[1].job;
  job.model.frozen = 5;
  try {
    run(job);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "model.frozen is 5 and vit_b_16 has 4 layers before its last; write 4 or less");
  }
}

TEST(Frozen, AnAsynchronousStageOfFrozenLayersIsRefused) {
  job::Job job = on(models()[1].job, job::Mode::Ssp, "0:0.0:1");
  job.model.frozen = 2;
  job.parallel.cuts = {"vit.encoder.layer.2.layernorm_before"};
  EXPECT_THROW(run(job), std::invalid_argument);
  job.parallel.cuts = {"vit.encoder.layer.3.layernorm_before"};
  EXPECT_EQ(run(job).losses.size(), 6u);
}

// Where a guard may take a freezing back, the optimizer goes on with what it knew.
TEST(Frozen, SlotsAreKeptWhereLayersMayLearnAgain) {
  job::Job job = models()[1].job;
  job.optimizer.kind = job::Algorithm::AdamW;
  job.steps = 3;
  const auto first = comm::make_local_process(), second = comm::make_local_process();
  Training before(job, *first, {});
  before.run({});
  job.steps = 6;
  job.model.frozen = 2;
  job.elastic.guard = 0.1;
  Training after(job, *second, {}, {}, {}, Parameters::Later);
  after.take_over(before);
  after.run({});
  const state::State known = before.state(), kept = after.state();
  const graph::Graph graph = model::training_graph(job, 1);
  for (const auto& [name, tensor] : known.second_moment) {
    const bool stands = depth_of(graph, name) <= 2;
    EXPECT_EQ(kept.second_moment.at(name) == tensor, stands) << name;
    EXPECT_EQ(kept.velocity.at(name) == known.velocity.at(name), stands) << name;
  }
}

}  // namespace
}  // namespace millrace::runtime
