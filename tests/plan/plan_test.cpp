#include "millrace/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <stdexcept>

#include "millrace/graph/fuse.h"
#include "millrace/model/model.h"

namespace millrace::plan {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// A stage file that goes with its test.
class StageFile {
 public:
  explicit StageFile(const std::string& modules, const std::string& ranks) {
    std::ofstream(path_) << R"({"module_to_stage_map": [)" << modules << R"(], "stage_to_rank_map": {)" << ranks
                         << "}}";
  }
  ~StageFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = testing::TempDir() + "plan_test" + std::to_string(::getpid());
};

job::Job alexnet_job() {
  job::Job job;
  job.model.name = "alexnet";
  job.batch = 16;
  job.parallel.mode = job::Mode::PipeDream;
  job.parallel.replicas = job::Replicas::RoundRobin;
  return job;
}

graph::Graph alexnet() { return graph::fuse(model::build({.name = "alexnet"}, 1, 0.0)); }

Plan planned(const StageFile& file, job::Balance balance = job::Balance::Operators,
             const std::vector<double>& op_seconds = {}) {
  job::Job job = alexnet_job();
  job.parallel.stage_file = file.path();
  job.parallel.balance = balance;
  return make_plan(job, alexnet(), 1, op_seconds);
}

TEST(StageFilePlan, GeneratedModulesGiveThePlacementAndFlopsTheCut) {
  job::Job by_flops = alexnet_job();
  by_flops.parallel.placement = "0:0-6.0:7";
  by_flops.parallel.balance = job::Balance::Flops;
  const Plan wanted = make_plan(by_flops, alexnet(), 1);
  const StageFile file("0, 1, 1", R"("0": [0, 1, 2, 3, 4, 5, 6], "1": [7])");
  for (job::Balance balance : {job::Balance::Operators, job::Balance::Flops}) {
    const Plan plan = planned(file, balance);
    EXPECT_EQ(plan.first, wanted.first);
    EXPECT_EQ(plan.pipeline.stages, wanted.pipeline.stages);
  }
}

TEST(StageFilePlan, GeneratedModulesAreCutByTimeWhereTheJobSaysSo) {
  std::vector<double> seconds(alexnet().ops.size(), 1e-6);
  seconds[4] = seconds[5] = 1;
  const StageFile file("0, 1, 1", R"("0": [0], "1": [1])");
  EXPECT_EQ(planned(file, job::Balance::Time, seconds).first, (std::vector<graph::OpId>{0, 5}));
}

TEST(StageFilePlan, OneStageIsNeverCut) {
  const StageFile file("0, 0, 0", R"("0": [0, 1])");
  const Plan plan = planned(file);
  EXPECT_EQ(plan.first, (std::vector<graph::OpId>{0}));
  EXPECT_EQ(plan.pipeline.num_replicas(0), 2);
}

TEST(StageFilePlan, AsManyEntriesAsOperatorsAreACutByModules) {
  const StageFile file("0,0,0,0,0,0,0,0,0,0,0,0,0,0,1,1,1,1,1,1,1,1", R"("0": [0], "1": [1])");
  const Plan plan = planned(file);
  EXPECT_EQ(alexnet().ops[plan.first[1]].name, "classifier.0");
}

TEST(StageFilePlan, OtherCountsAreRefusedWithTheNumbers) {
  for (const char* modules : {"0, 0, 1, 1", "0, 1"}) {
    const StageFile file(modules, R"("0": [0], "1": [1])");
    EXPECT_THAT([&] { planned(file); },
                ThrowsMessage<std::invalid_argument>(HasSubstr("for 2 stages; write 22, one for each operator of "
                                                               "alexnet with its loss, or 3, one for each stage")))
        << modules;
  }
}

TEST(Plan, StagesThatShareAWeightAreTied) {
  job::Job job;
  job.model = {.name = "alexnet_small", .classes = 10, .image_size = 16, .channels = 3};
  graph::Graph graph = graph::fuse(model::build(job.model, 4, 0));
  // The last linear layer reads the weights of an earlier one, as a language model's head reads its embedding.
  std::vector<graph::OpId> linear;
  for (graph::OpId op = 0; op < static_cast<graph::OpId>(graph.ops.size()); ++op) {
    if (graph.ops[op].kind == graph::OpKind::Linear) linear.push_back(op);
  }
  ASSERT_GE(linear.size(), 2u);
  graph.ops[linear.back()].params[0] = graph.ops[linear.front()].params[0];
  job.batch = 4;
  job.parallel.mode = job::Mode::OneFOneB;
  job.parallel.placement = "0:0.0:1";
  job.parallel.cuts = {graph.ops[linear.back()].name};
  const Plan apart = make_plan(job, graph, 2);
  ASSERT_EQ(apart.ties.size(), 1u);
  EXPECT_EQ(apart.ties[0].param, graph.ops[linear.front()].params[0]);
  EXPECT_EQ(apart.ties[0].stages, (std::vector<int>{0, 1}));
  EXPECT_EQ(apart.workers_of(apart.ties[0]), (std::vector<int>{0, 1}));
  EXPECT_TRUE(apart.pipeline.agrees_on_steps);
  job.parallel.cuts = {graph.ops[linear.front()].name};
  const Plan together = make_plan(job, graph, 2);
  EXPECT_TRUE(together.ties.empty());
  EXPECT_FALSE(together.pipeline.agrees_on_steps);
  // Stages that take minibatches in turn do not update equally often.
  job.parallel.cuts = {graph.ops[linear.back()].name};
  job.parallel.mode = job::Mode::PipeDream;
  job.parallel.replicas = job::Replicas::RoundRobin;
  job.parallel.placement = "0:0-1.0:2";
  EXPECT_THAT([&] { make_plan(job, graph, 3); },
              testing::ThrowsMessage<std::invalid_argument>(testing::AllOf(
                  testing::HasSubstr("which stages 0, 1 share"), testing::HasSubstr("update equally often"))));
}

TEST(Plan, WhatIsSaidOfBlocksNeedsBlocks) {
  job::Job job = alexnet_job();
  const graph::Graph graph = model::training_graph(job, 1);
  job.parallel.recompute = job::Recompute::Block;
  EXPECT_THAT([&] { make_plan(job, graph, 1); }, testing::ThrowsMessage<std::invalid_argument>(
                                                     testing::HasSubstr("has no blocks; write memory.recompute")));
  job.parallel.recompute = job::Recompute::Auto;
  EXPECT_NO_THROW(make_plan(job, graph, 1));
  job.optimizer.layer_decay = 0.75;
  EXPECT_THAT([&] { make_plan(job, graph, 1); },
              testing::ThrowsMessage<std::invalid_argument>(testing::HasSubstr("write optimizer.layer_decay: 1")));
  job.model = {.name = "vit_s_16", .layers = 1};
  EXPECT_NO_THROW(make_plan(job, model::training_graph(job, 1), 1));
}

TEST(Plan, ClippingNeedsStagesThatAgree) {
  job::Job job = alexnet_job();
  job.parallel.mode = job::Mode::OneFOneB;
  job.parallel.placement = "0:0.0:1";
  job.optimizer.clip_norm = 1;
  const graph::Graph graph = model::training_graph(job, 1);
  EXPECT_TRUE(make_plan(job, graph, 1).pipeline.agrees_on_steps);
  job.parallel.placement = "0:0.0:1.0:0";
  EXPECT_THAT([&] { make_plan(job, graph, 1); }, testing::ThrowsMessage<std::invalid_argument>(testing::AllOf(
                                                     testing::HasSubstr("optimizer.clip_norm needs one stage"),
                                                     testing::HasSubstr("write optimizer.clip_norm: 0"))));
  job.parallel.mode = job::Mode::Dp;
  job.parallel.placement = "0:0";
  EXPECT_FALSE(make_plan(job, graph, 1).pipeline.agrees_on_steps);
}

TEST(Plan, HalvesNeedStagesThatCanAgree) {
  job::Job job = alexnet_job();
  job.device = job::Device::Cuda;
  job.precision = job::Precision::Fp16;
  job.parallel.mode = job::Mode::OneFOneB;
  job.parallel.placement = "0:0.0:1";
  const graph::Graph graph = model::training_graph(job, 1);
  EXPECT_TRUE(make_plan(job, graph, 1).pipeline.agrees_on_steps);
  job.parallel.placement = "0:0-1.0:1";
  EXPECT_THAT([&] { make_plan(job, graph, 1); }, testing::ThrowsMessage<std::invalid_argument>(
                                                     testing::HasSubstr("one stage per device, 0:1 has several")));
  job.precision = job::Precision::Bf16;
  const graph::Graph wide = model::training_graph(job, 1);
  EXPECT_FALSE(make_plan(job, wide, 1).pipeline.agrees_on_steps);
  job.precision = job::Precision::Fp16;
  job.parallel.mode = job::Mode::PipeDream;
  job.parallel.replicas = job::Replicas::RoundRobin;
  job.parallel.placement = "0:0-1.0:2";
  EXPECT_THAT([&] { make_plan(job, graph, 1); },
              testing::ThrowsMessage<std::invalid_argument>(testing::HasSubstr("update equally often")));
}

}  // namespace
}  // namespace millrace::plan
