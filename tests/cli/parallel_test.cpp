// What `millrace train` tells of a run on several workers.
#include <gmock/gmock.h>

#include <map>

#include "cli/command_runner.h"
#include "cli/tiny_job.h"

namespace millrace::cli {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class Parallel : public CommandTest {
 protected:
  Parallel() { write("job.yaml", tiny_job()); }

  Outcome train(std::vector<std::string> sets) {
    sets.emplace_back("steps=4");
    Outcome outcome = run({"train", "job.yaml", "--out", "run", "--overwrite"}, sets);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome;
  }
  Outcome train_two_stages(const std::string& mode, int microbatches) {
    return train({"parallel.mode=" + mode, "parallel.placement=0:0.0:1",
                  "parallel.microbatches=" + std::to_string(microbatches)});
  }
  Json summary() const { return json("run/summary.json"); }
};

TEST_F(Parallel, SummaryTellsOfEveryWorkerAndLink) {
  train_two_stages("1f1b", 4);
  const Json found = summary();
  EXPECT_EQ(found.at("mode"), "1f1b");
  EXPECT_EQ(found.at("weight_delay"), (Json{0, 0}));
  for (const char* key : {"bubble_share", "comm_share", "comm_hidden_share"}) {
    EXPECT_GE(found.at(key).get<double>(), 0) << key;
    EXPECT_LE(found.at(key).get<double>(), 1) << key;
  }
  ASSERT_EQ(found.at("workers").size(), 2u);
  for (int i = 0; i < 2; ++i) {
    const Json& worker = found.at("workers")[i];
    EXPECT_EQ(worker.at("worker"), i);
    EXPECT_EQ(worker.at("device"), "0:" + std::to_string(i));
    EXPECT_NE(worker.at("host"), "");
    EXPECT_EQ(worker.at("stages"), Json::array({i}));
    EXPECT_EQ(worker.at("stage"), i);
    EXPECT_GT(worker.at("peak_bytes").get<int64_t>(), 0);
    EXPECT_GT(worker.at("busy_s").get<double>(), 0);
  }
  ASSERT_EQ(found.at("links").size(), 2u);
  // Every activation that goes forth comes back as a gradient.
  EXPECT_EQ(found.at("links")[0].at("bytes"), found.at("links")[1].at("bytes"));
  EXPECT_EQ(found.at("bytes_sent"), 2 * found.at("links")[0].at("bytes").get<int64_t>());
}

TEST_F(Parallel, EvaluationIsNotCountedAsSent) {
  train_two_stages("1f1b", 4);
  const Json evaluated = summary();
  train({"parallel.mode=1f1b", "parallel.placement=0:0.0:1", "parallel.microbatches=4", "data.test_samples=0"});
  EXPECT_EQ(evaluated.at("links"), summary().at("links"));
}

TEST_F(Parallel, WhatTheSimulatorMakesOfTheRunStandsBesideIt) {
  train_two_stages("1f1b", 4);
  const double simulated = summary().at("simulated_step_ms"), measured = summary().at("step_ms").at("p50");
  EXPECT_GT(simulated, 0);
  EXPECT_LT(simulated, 1000 * measured);  // the same unit; how near it is, bench/parallel.sh says
}

TEST_F(Parallel, WeightsOfAnAsynchronousPipelineAreBehind) {
  train_two_stages("ssp", 1);
  EXPECT_EQ(summary().at("mode"), "ssp");
  EXPECT_EQ(summary().at("weight_delay"), (Json{1, 0}));
}

TEST_F(Parallel, TraceHasATrackPerWorker) {
  train_two_stages("1f1b", 4);
  const Json trace = json("run/trace.json");
  std::set<std::string> tracks;
  std::map<int, std::map<std::string, int>> counts;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("name") == "thread_name") tracks.insert(event.at("args").at("name"));
    if (event.at("ph") == "X") ++counts[event.at("tid")][event.at("name")];
  }
  EXPECT_EQ(tracks, (std::set<std::string>{"worker 0 (0:0) stage 0", "worker 1 (0:1) stage 1"}));
  ASSERT_EQ(counts.size(), 2u);
  for (auto& [track, of] : counts) {
    EXPECT_EQ(of["F"], 4 * 4);
    EXPECT_GE(of["I"], 4 * 4);
    EXPECT_GE(of["W"], 4 * 4);
    EXPECT_GE(of["step"], 1);
    EXPECT_GT(of["evaluate"], 0);
  }
}

TEST_F(Parallel, PlanAndWorkersArePrinted) {
  const Outcome outcome = train_two_stages("1f1b", 4);
  EXPECT_THAT(outcome.out, HasSubstr("stage 0 of 2: "));
  EXPECT_THAT(outcome.out, HasSubstr("stage 1 of 2: "));
  for (const char* row : {"1f1b, 2 workers", "bubble", "communication", "a step", "worker  device  stages"}) {
    EXPECT_THAT(outcome.out, HasSubstr(row));
  }
}

TEST_F(Parallel, OneWorkerHasTheSameKeysAndNoTable) {
  const Outcome outcome = train({});
  const Json found = summary();
  EXPECT_EQ(found.at("mode"), "dp");
  EXPECT_EQ(found.at("weight_delay"), Json::array({0}));
  EXPECT_TRUE(found.at("bubble_share").is_number());
  EXPECT_EQ(found.at("comm_share"), 0);
  EXPECT_TRUE(found.at("comm_hidden_share").is_null());
  EXPECT_EQ(found.at("bytes_sent"), 0);
  EXPECT_EQ(found.at("links"), Json::array());
  EXPECT_EQ(found.at("workers").size(), 1u);
  for (const char* row : {"stage 0 of", "bubble", "worker  device"}) EXPECT_THAT(outcome.out, Not(HasSubstr(row)));
}

}  // namespace
}  // namespace millrace::cli
