#include "millrace/plan/planner.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/graph/fuse.h"
#include "millrace/model/model.h"
#include "millrace/plan/plan_file.h"
#include "millrace/plan/roofline.h"

namespace millrace::plan {
namespace {

using job::Mode;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr int64_t kGiB = int64_t{1} << 30;

job::Job job_of(const std::string& model, int64_t batch, int64_t image_size = 224) {
  job::Job job;
  job.name = model;
  job.model.name = model;
  job.model.classes = 1000;
  job.model.image_size = image_size;
  job.batch = batch;
  job.steps = 1;
  job.data.train_samples = 0;
  job.data.test_samples = 0;
  return job;
}

// A device of 100 GFLOP/s and 20 GB/s: about a core.
std::vector<profile::Profile> profiles_of(const job::Job& job) {
  std::vector<profile::Profile> profiles;
  for (int64_t rows : {std::max<int64_t>(1, job.batch / 8), job.batch}) {
    profiles.push_back(roofline_profile(graph::fuse(model::build(job.model, rows, 0)), {1e11, 2e10, 4, 0}));
  }
  return profiles;
}

Cluster cluster_of(std::vector<double> speeds, double bytes_per_s, int64_t memory_bytes = 64 * kGiB) {
  Cluster cluster;
  cluster.name = "test";
  for (size_t d = 0; d < speeds.size(); ++d) {
    cluster.devices.push_back({{0, static_cast<int>(d)}, "core", memory_bytes, speeds[d]});
  }
  if (speeds.size() > 1) cluster.levels = {{"link", static_cast<int>(speeds.size()), bytes_per_s, 1e-6, false}};
  return cluster;
}

TEST(Planner, SlowLinksKeepTheClassifierInOnePlace) {
  const job::Job job = job_of("alexnet", 128);
  const Choice choice = choose(job, profiles_of(job), cluster_of({1, 1}, 5e7), synchronous_modes());
  const Candidate& best = choice.candidates[0];
  ASSERT_EQ(best.plan.pipeline.num_stages(), 2);
  EXPECT_THAT(best.parallel.cuts[0], testing::AnyOf(HasSubstr("classifier"), HasSubstr("flatten")));
  EXPECT_EQ(best.plan.pipeline.num_replicas(1), 1);
  ASSERT_GE(choice.data_parallel, 0);
  EXPECT_GT(choice.candidates[choice.data_parallel].prediction.step_s, 1.3 * best.prediction.step_s);
}

TEST(Planner, FastLinksLeaveTheModelWhole) {
  const job::Job job = job_of("resnet50", 16);
  const Choice choice = choose(job, profiles_of(job), cluster_of({1, 1}, 1e11), synchronous_modes());
  EXPECT_EQ(choice.candidates[0].parallel.mode, Mode::Dp);
  EXPECT_EQ(choice.data_parallel, 0);
}

TEST(Planner, IsNeverMuchSlowerThanTheBaselines) {
  for (const char* model : {"alexnet", "vgg16", "resnet18"}) {
    for (double bytes_per_s : {1e8, 1e9, 1e10}) {
      for (const std::vector<double>& speeds : {std::vector<double>{1, 1}, {1, 1, 1}, {2, 1, 1, 2}}) {
        const job::Job job = job_of(model, 32);
        const Choice choice = choose(job, profiles_of(job), cluster_of(speeds, bytes_per_s), synchronous_modes());
        for (int baseline : {choice.data_parallel, choice.straight_pipeline}) {
          ASSERT_GE(baseline, 0) << model;
          EXPECT_LE(choice.candidates[0].prediction.step_s, 1.05 * choice.candidates[baseline].prediction.step_s);
        }
      }
    }
  }
}

TEST(Planner, DevicesOfTwoSpeedsReachTheBoundOfTheirSum) {
  for (const std::vector<double>& speeds : {std::vector<double>{1, 2}, {1, 1, 2, 2}, {1, 3, 3}}) {
    const job::Job job = job_of("vgg16", 96);
    const std::vector<profile::Profile> profiles = profiles_of(job);
    const Choice choice = choose(job, profiles, cluster_of(speeds, 1e11), synchronous_modes());
    double speed = 0;
    for (double s : speeds) speed += s;
    const double bound_s = profiles.back().step_s / speed;
    EXPECT_LE(choice.candidates[0].prediction.step_s, bound_s / 0.9) << to_text(choice.candidates[0]);
  }
}

TEST(Planner, TakesMoreMicrobatchesWhereMemoryIsShort) {
  const job::Job job = job_of("vgg16", 256);
  const std::vector<profile::Profile> profiles = profiles_of(job);
  const Choice roomy = choose(job, profiles, cluster_of({1, 1}, 1e10), {Mode::Dp});
  const double needed = roomy.candidates[0].prediction.worker_bytes[0];
  const auto less = static_cast<int64_t>(0.7 * needed);
  const Choice tight = choose(job, profiles, cluster_of({1, 1}, 1e10, less), {Mode::Dp});
  EXPECT_GT(tight.candidates[0].parallel.microbatches, roomy.candidates[0].parallel.microbatches);
  EXPECT_LE(tight.candidates[0].prediction.worker_bytes[0], static_cast<double>(less));
  EXPECT_THAT(
      [&] {
        choose(job, profiles, cluster_of({1, 1}, 1e10, kGiB / 4), synchronous_modes());
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("vgg16: cannot run on test: no plan fits")));
}

TEST(Planner, RunsForwardAgainWhereMemoryIsTooShortToKeep) {
  job::Job job = job_of("resnet50", 64);
  job.parallel.microbatches = 8;
  const std::vector<profile::Profile> profiles = profiles_of(job);
  const auto best_within = [&](double bytes) {
    return choose(job, profiles, cluster_of({1, 1, 1}, 1e10, static_cast<int64_t>(bytes)), {Mode::OneFOneB})
        .candidates[0];
  };
  const Candidate roomy = best_within(64.0 * kGiB);
  ASSERT_EQ(roomy.parallel.recompute, job::Recompute::Off);
  double needed = *std::max_element(roomy.prediction.worker_bytes.begin(), roomy.prediction.worker_bytes.end());
  bool found = false;
  for (int i = 0; i < 12 && !found; ++i) {
    needed *= 0.95;
    const Candidate tight = best_within(needed);  // throws where nothing fits
    EXPECT_TRUE(tight.fits());
    found = tight.parallel.recompute == job::Recompute::Stage;
  }
  EXPECT_TRUE(found);
}

TEST(Planner, ComputesBlocksAgainOnOneDeviceThatIsTooSmall) {
  job::Job job = job_of("vit_s_16", 1);  // micro-batches cannot be smaller
  const std::vector<profile::Profile> profiles = profiles_of(job);
  const auto best_within = [&](double bytes) {
    return choose(job, profiles, cluster_of({1}, 1e10, static_cast<int64_t>(bytes)), {Mode::Dp}).candidates[0];
  };
  const Candidate roomy = best_within(64.0 * kGiB);
  EXPECT_EQ(roomy.parallel.recompute, job::Recompute::Off);
  const Candidate tight = best_within(0.95 * roomy.prediction.worker_bytes[0]);
  EXPECT_EQ(tight.parallel.recompute, job::Recompute::Block);
  EXPECT_TRUE(tight.fits());
  // About one forward more.
  EXPECT_GT(tight.prediction.step_s, 1.1 * roomy.prediction.step_s);
  EXPECT_LT(tight.prediction.step_s, 1.5 * roomy.prediction.step_s);
}

TEST(Planner, ChoosesStaleModesOnlyWhereAllowed) {
  const job::Job job = job_of("alexnet", 128);
  const std::vector<profile::Profile> profiles = profiles_of(job);
  const Cluster cluster = cluster_of({1, 1}, 1.25e8);
  const Choice fresh = choose(job, profiles, cluster, synchronous_modes());
  for (const Candidate& candidate : fresh.candidates) EXPECT_TRUE(candidate.plan.pipeline.synchronous());
  const Choice stale = choose(job, profiles, cluster, {Mode::Dp, Mode::OneFOneB, Mode::PipeDream, Mode::Ssp});
  EXPECT_FALSE(stale.candidates[0].plan.pipeline.synchronous());
  EXPECT_LT(stale.candidates[0].prediction.step_s, fresh.candidates[0].prediction.step_s);
}

TEST(Planner, AHundredRunsAgree) {
  const job::Job job = job_of("alexnet", 32);
  const std::vector<profile::Profile> profiles = profiles_of(job);
  const Cluster cluster = cluster_of({1, 2, 1}, 1e9);
  const auto run = [&] {
    const Choice choice = choose(job, profiles, cluster, {Mode::Dp, Mode::OneFOneB, Mode::Ssp});
    std::string all;
    for (const Candidate& candidate : choice.candidates) {
      all += fmt::format("{} {} {}\n", to_text(candidate), candidate.parallel.shares, candidate.prediction.step_s);
    }
    return all;
  };
  const std::string first = run();
  for (int i = 1; i < 100; ++i) ASSERT_EQ(run(), first);
}

TEST(Predict, OneWorkerTakesTheSumOfItsOperators) {
  const job::Job job = job_of("resnet18", 8);
  const std::vector<profile::Profile> profiles = profiles_of(job);
  const graph::Graph graph = graph::fuse(model::build(job.model, 1, 0));
  const Plan plan = make_plan(job, graph, 1);
  const Prediction prediction = predict(job, plan, profiles, cluster_of({1}, 0));
  EXPECT_NEAR(prediction.step_s, profiles.back().step_s, 1e-9 * profiles.back().step_s);
  EXPECT_NEAR(prediction.bubble_share, 0, 1e-9);
  EXPECT_TRUE(prediction.links.empty());
}

TEST(Predict, CountsWhatIsSent) {
  job::Job job = job_of("alexnet", 32);
  job.parallel.placement = "0:0-1";
  const graph::Graph graph = graph::fuse(model::build(job.model, 1, 0));
  const Prediction prediction = predict(job, make_plan(job, graph, 2), profiles_of(job), cluster_of({1, 1}, 1e9));
  double sent = 0;
  for (const LinkLoad& link : prediction.links) sent += link.bytes;
  // Around a ring of two everybody sends all gradients once.
  EXPECT_NEAR(sent, 2.0 * 4 * static_cast<double>(graph.trainable_elements()), 1);
  EXPECT_GT(prediction.step_s, sent / 2 / 1e9);
}

TEST(Predict, SumsThatOccupyTheDevicesDoNotHide) {
  job::Job job = job_of("alexnet", 32);
  job.parallel.placement = "0:0-1";
  const graph::Graph graph = graph::fuse(model::build(job.model, 1, 0));
  const Plan plan = make_plan(job, graph, 2);
  Cluster cluster = cluster_of({1, 1}, 1e9);
  const Prediction hidden = predict(job, plan, profiles_of(job), cluster);
  cluster.levels[0].occupies = true;
  const Prediction shown = predict(job, plan, profiles_of(job), cluster);
  const double sum_s = 4.0 * static_cast<double>(graph.trainable_elements()) / 1e9;
  const double compute_s = at_rows(profiles_of(job), 16).step_s;
  EXPECT_NEAR(shown.step_s, compute_s + sum_s, 0.01 * shown.step_s);
  EXPECT_LT(hidden.step_s, shown.step_s);
}

// On a GPU a copy of the weights and what the optimizer keeps, where there is room for it; nothing is refused for it.
TEST(Predict, CountsTheSnapshotOfAGpuWhereThereIsRoom) {
  job::Job job = job_of("alexnet", 32);
  job.device = job::Device::Cuda;
  const graph::Graph graph = graph::fuse(model::build(job.model, 1, 0));
  const auto predicted = [&](double memory_bytes) {
    return predict(job, make_plan(job, graph, 1), profiles_of(job),
                   cluster_of({1}, 0, static_cast<int64_t>(memory_bytes)));
  };
  const double without = predicted(64.0 * kGiB).worker_bytes[0];
  job.checkpoint.every = {job::Period::Unit::Steps, 10};
  const double with = predicted(64.0 * kGiB).worker_bytes[0];
  const double state = 2.0 * 4 * static_cast<double>(graph.trainable_elements());
  EXPECT_NEAR(with - without, state, 1e-3 * state);
  EXPECT_EQ(predicted(with).worker_bytes[0], with);
  EXPECT_EQ(predicted(with - 1).worker_bytes[0], without);
  EXPECT_EQ(predicted(with - 1).refusal, "");
}

TEST(Predict, CountsTheLoadersBuffers) {
  job::Job job = job_of("alexnet", 32);
  const graph::Graph graph = graph::fuse(model::build(job.model, 1, 0));
  const auto beside_the_stage = [&] {
    const Prediction made = predict(job, make_plan(job, graph, 1), profiles_of(job), cluster_of({1}, 0));
    return made.worker_bytes[0] - made.stages[0].memory.total();
  };
  const double batch_bytes = 32.0 * (3 * 224 * 224 * 4 + 4 + 2 * 8);  // image, label, numbers
  EXPECT_NEAR(beside_the_stage(), 0, 1);                              // one fixed batch lies where it is read
  job.parallel.microbatches = 4;
  EXPECT_NEAR(beside_the_stage(), batch_bytes, 1);
  job.data.train_samples = 100;
  EXPECT_NEAR(beside_the_stage(), 3 * batch_bytes, 1);  // two ahead
  job.data.ahead = 5;
  EXPECT_NEAR(beside_the_stage(), 6 * batch_bytes, 1);
  job.data.kind = job::DataKind::Generated;
  job.data.test_samples = 50;
  EXPECT_NEAR(beside_the_stage(), 6 * batch_bytes + 6 * batch_bytes / 4, 1);  // evaluation: a micro-batch at a time
}

TEST(Predict, RefusesDevicesTheClusterHasNot) {
  job::Job job = job_of("alexnet", 32);
  job.parallel.placement = "0:0-2";
  const graph::Graph graph = graph::fuse(model::build(job.model, 1, 0));
  const Plan plan = make_plan(job, graph, 3);
  EXPECT_THAT(
      [&] {
        predict(job, plan, profiles_of(job), cluster_of({1, 1}, 1e9));
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("device 0:2, which cluster test has not")));
}

TEST(PlanFile, ReadsSettingsBack) {
  const auto settings = parse_plan_settings(
      R"({"predicted": {}, "parallel": {"mode": "1f1b", "cuts": ["a", "b"], "microbatches": 4, "stale": false}})", "p");
  EXPECT_THAT(settings, testing::UnorderedElementsAre("parallel.mode=1f1b", "parallel.cuts=a,b",
                                                      "parallel.microbatches=4", "parallel.stale=false"));
  const auto refused = [](const char* text) { return [=] { parse_plan_settings(text, "p.json"); }; };
  EXPECT_THAT(refused("{"), ThrowsMessage<std::invalid_argument>(HasSubstr("p.json: not JSON, at byte 2")));
  EXPECT_THAT(refused("{}"), ThrowsMessage<std::invalid_argument>(HasSubstr("\"parallel\" is missing")));
  EXPECT_THAT(refused(R"({"parallel": {"mod": "dp"}})"),
              ThrowsMessage<std::invalid_argument>(HasSubstr("parallel.mod: there is no such key; did you mean")));
  EXPECT_THAT(refused(R"({"parallel": {"mode": {}}})"),
              ThrowsMessage<std::invalid_argument>(HasSubstr("write a text, a number")));
}

}  // namespace
}  // namespace millrace::plan
