#include "millrace/report/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace millrace::report {
namespace {

using testing::HasSubstr;
using testing::Not;

Summary example() {
  Summary summary;
  summary.model = "resnet50";
  summary.device = "cpu";
  summary.precision = "fp32";
  summary.batch = 16;
  summary.threads = 2;
  summary.seed = 18446744073709551615u;
  summary.parameters = 25557032;
  summary.steps = 100;
  summary.samples = 1600;
  summary.epoch_s = 12.5;
  summary.samples_per_s = 7.1;
  summary.step_ms = {2200, 2253.5, 2400};
  summary.gflops = 175;
  summary.data_wait_share = 0.001;
  summary.peak_bytes = {int64_t{1} << 30, (int64_t{1} << 30) + 5, int64_t{2} << 30};
  summary.loss = 0.25;
  summary.accuracy = {0.955, 0.999};
  return summary;
}

TEST(Summary, JsonHasTheKeysScriptsRelyOn) {
  const auto json = nlohmann::json::parse(to_json(example()).dump());
  EXPECT_EQ(json["samples_per_s"], 7.1);
  EXPECT_EQ(json["step_ms"]["p10"], 2200);
  EXPECT_EQ(json["step_ms"]["p50"], 2253.5);
  EXPECT_EQ(json["step_ms"]["p90"], 2400);
  EXPECT_EQ(json["gflops"], 175);
  EXPECT_EQ(json["peak_bytes"]["planned"], 1073741824);
  EXPECT_EQ(json["peak_bytes"]["measured"], 1073741829);
  EXPECT_EQ(json["peak_bytes"]["process"], 2147483648);
  EXPECT_EQ(json["loss"], 0.25);
  EXPECT_EQ(json["accuracy"]["top1"], 0.955);
  EXPECT_EQ(json["accuracy"]["top5"], 0.999);
  EXPECT_EQ(json["samples"], 1600);
  EXPECT_EQ(json["epoch_s"], 12.5);
  EXPECT_EQ(json["model"], "resnet50");
  EXPECT_EQ(json["batch"], 16);
  EXPECT_EQ(json["threads"], 2);
  EXPECT_EQ(json["seed"], 18446744073709551615u);
  EXPECT_EQ(json["device"], "cpu");
  EXPECT_EQ(json["precision"], "fp32");
  EXPECT_EQ(json["steps"], 100);
  EXPECT_EQ(json["parameters"], 25557032);
  EXPECT_EQ(json["data_wait_share"], 0.001);
}

TEST(Summary, WhatWasNotMeasuredIsNull) {
  Summary summary = example();
  summary.accuracy.reset();
  summary.epoch_s.reset();
  summary.loss = NAN;
  const auto json = nlohmann::json::parse(to_json(summary).dump());
  EXPECT_TRUE(json["accuracy"]["top1"].is_null());
  EXPECT_TRUE(json["accuracy"]["top5"].is_null());
  EXPECT_TRUE(json["epoch_s"].is_null());
  EXPECT_TRUE(json["loss"].is_null());
}

TEST(Summary, TableReadsWell) {
  EXPECT_EQ(render_table(example()),
            "model             resnet50, 25.6 M parameters\n"
            "ran on            cpu, 2 threads, fp32\n"
            "trained           100 steps of 16: 1,600 samples\n"
            "speed             7.10 samples/s, 175 GFLOP/s\n"
            "step              2.25 s (p10 2.20 s, p90 2.40 s)\n"
            "epoch             12.5 s\n"
            "waiting for data  0.1%\n"
            "peak memory       1.00 GiB planned, 1.00 GiB measured\n"
            "loss              0.2500\n"
            "test accuracy     95.5% top-1, 99.9% top-5\n");
}

TEST(Summary, TableLeavesOutWhatWasNotMeasured) {
  Summary summary = example();
  summary.accuracy.reset();
  summary.loss.reset();
  EXPECT_THAT(render_table(summary), Not(HasSubstr("accuracy")));
  EXPECT_THAT(render_table(summary), Not(HasSubstr("loss")));
}

TEST(Summary, ATraceThatWasCutIsSaid) {
  Summary summary = example();
  EXPECT_THAT(render_table(summary), Not(HasSubstr("trace")));
  summary.trace = {65536, 1000};
  EXPECT_THAT(render_table(summary), HasSubstr("65,536 of 66,536 spans: the first ones of each training"));
  const auto json = nlohmann::json::parse(to_json(summary).dump());
  EXPECT_EQ(json["trace"]["spans"], 65536);
  EXPECT_EQ(json["trace"]["spans_left_out"], 1000);
}

TEST(Summary, WhatWasSkippedIsCountedOverAllTrainings) {
  runtime::WorkerRecord first, second;
  first.skipped = {2, 3, {"a", "b"}};
  second.skipped = {2, 4, {"b", "c"}};
  const std::vector<std::vector<runtime::WorkerRecord>> trainings = {{first}, {second}};
  const data::Skipped all = all_skipped(trainings);
  EXPECT_EQ(all.left_out, 2);
  EXPECT_EQ(all.while_reading, 7);
  EXPECT_EQ(all.reasons, (std::vector<std::string>{"a", "b", "c"}));
}

}  // namespace
}  // namespace millrace::report
