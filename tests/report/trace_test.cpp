#include "millrace/report/trace.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <vector>

namespace millrace::report {
namespace {

using nlohmann::json;
using runtime::Activity;
using runtime::Span;
using runtime::WorkerRecord;

constexpr int64_t kStartNs = 1'000'000'000'000'007;

Span span(Activity activity, int64_t begin_us, int64_t end_us, int stage = 0, int64_t microbatch = 0) {
  return {kStartNs + begin_us * 1000, kStartNs + end_us * 1000, microbatch, stage, activity};
}

WorkerRecord record(int worker, std::vector<int> stages, std::vector<Span> spans, const std::string& host = "mill") {
  WorkerRecord made;
  made.worker = worker;
  made.device = "0:" + std::to_string(worker);
  made.host = host;
  made.stages = std::move(stages);
  made.spans = std::move(spans);
  return made;
}

std::vector<json> events(const std::vector<WorkerRecord>& records, const std::string& phase = "X") {
  std::vector<json> found;
  const json trace = json::parse(chrome_trace(records));
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") == phase) found.push_back(event);
  }
  return found;
}

std::vector<std::string> names(const std::vector<WorkerRecord>& records) {
  std::vector<std::string> found;
  for (const json& event : events(records)) found.push_back(event.at("name"));
  return found;
}

TEST(Trace, OfNothingIsStillATrace) {
  EXPECT_EQ(json::parse(chrome_trace({})).at("traceEvents"), json::array());
  EXPECT_TRUE(events({record(0, {0}, {})}).empty());
}

TEST(Trace, EachSpanIsOneEventInMicrosecondsFromTheFirst) {
  const auto found = events({record(0, {0}, {span(Activity::Forward, 5, 25, 0, 7)}),
                             record(1, {1}, {span(Activity::InputGrad, 2, 12, 1, 3)})});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].at("name"), "F");
  EXPECT_EQ(found[0].at("cat"), "forward");
  EXPECT_EQ(found[0].at("ts"), 3);
  EXPECT_EQ(found[0].at("dur"), 20);
  EXPECT_EQ(found[0].at("args"), (json{{"stage", 0}, {"micro-batch", 7}}));
  EXPECT_EQ(found[1].at("name"), "I");
  EXPECT_EQ(found[1].at("cat"), "input gradient");
  EXPECT_EQ(found[1].at("ts"), 0);
  EXPECT_EQ(found[1].at("args"), (json{{"stage", 1}, {"micro-batch", 3}}));
}

TEST(Trace, NanosecondsAreKept) {
  WorkerRecord worker = record(0, {0}, {span(Activity::Forward, 0, 1), span(Activity::InputGrad, 1, 2)});
  worker.spans[1].begin_ns += 7;
  EXPECT_NE(chrome_trace(std::vector{worker}).find("\"ts\":1.007,\"dur\":0.993,"), std::string::npos);
}

TEST(Trace, UpdatesAreCountedAsUpdates) {
  for (const Activity activity : {Activity::Reduce, Activity::Step}) {
    const auto found = events({record(0, {0}, {span(activity, 0, 5, 0, 4)})});
    EXPECT_EQ(found.at(0).at("args"), (json{{"stage", 0}, {"update", 4}}));
  }
}

TEST(Trace, TracksAreNamedByHostAndWorker) {
  const std::vector<WorkerRecord> records = {record(0, {0, 2}, {}, "mill"), record(1, {1}, {}, "a \"b\""),
                                             record(2, {3}, {}, "mill")};
  std::map<int, std::string> hosts;
  std::map<int, std::pair<int, std::string>> workers;
  for (const json& event : events(records, "M")) {
    const int pid = event.at("pid");
    if (event.at("name") == "process_name") hosts[pid] = event.at("args").at("name");
    if (event.at("name") == "thread_name") workers[event.at("tid")] = {pid, event.at("args").at("name")};
  }
  ASSERT_EQ(hosts.size(), 2u);
  ASSERT_EQ(workers.size(), 3u);
  std::vector<std::pair<std::string, std::string>> tracks;
  for (const auto& [tid, worker] : workers) tracks.emplace_back(hosts.at(worker.first), worker.second);
  EXPECT_EQ(tracks, (std::vector<std::pair<std::string, std::string>>{{"mill", "worker 0 (0:0) stages 0, 2"},
                                                                      {"a \"b\"", "worker 1 (0:1) stage 1"},
                                                                      {"mill", "worker 2 (0:2) stage 3"}}));
}

TEST(Trace, HostsShareNoClock) {
  const auto found = events({record(0, {0}, {span(Activity::Forward, 0, 10)}, "one"),
                             record(1, {1}, {span(Activity::Forward, 5'000'000, 5'000'010)}, "other")});
  EXPECT_EQ(found.at(0).at("ts"), 0);
  EXPECT_EQ(found.at(1).at("ts"), 0);
}

TEST(Trace, LongGapsAreIdleAndShortOnesAreNothing) {
  const auto found = events({record(
      0, {0}, {span(Activity::Forward, 0, 10), span(Activity::Forward, 59, 70), span(Activity::InputGrad, 120, 130)})});
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(found[2].at("name"), "idle");
  EXPECT_EQ(found[2].at("ts"), 70);
  EXPECT_EQ(found[2].at("dur"), 50);
}

TEST(Trace, WaitingForAMessageIsNotIdle) {
  EXPECT_EQ(names({record(0, {0}, {span(Activity::Forward, 0, 10), span(Activity::Receive, 10, 500)})}),
            (std::vector<std::string>{"F", "receive"}));
}

TEST(Trace, WhatTookNoTimeIsLeftOut) {
  std::vector<Span> spans;
  for (const Activity activity : {Activity::Send, Activity::Receive, Activity::Data, Activity::Reduce, Activity::Step,
                                  Activity::Evaluate, Activity::Forward, Activity::InputGrad}) {
    spans.push_back(span(activity, 3, 3));
  }
  EXPECT_EQ(names({record(0, {0}, spans)}), (std::vector<std::string>{"reduce", "evaluate", "F", "I"}));
  EXPECT_EQ(names({record(0, {0}, {span(Activity::Send, 0, 1)})}), (std::vector<std::string>{"send"}));
}

TEST(Trace, AGapIsOneIdleEventAlsoAroundWhatIsLeftOut) {
  const auto found = events({record(
      0, {0}, {span(Activity::Forward, 0, 10), span(Activity::Data, 40, 40), span(Activity::Forward, 70, 80)})});
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[1].at("name"), "idle");
  EXPECT_EQ(found[1].at("dur"), 60);
}

TEST(Trace, EventsOfATrackDoNotOverlap) {
  std::vector<Span> spans;
  for (int64_t i = 0, at = 0; i < 200; ++i) {
    const int64_t gap = i * 7919 % 90'000, length = i * 104'729 % 3'000;
    spans.push_back({kStartNs + at + gap, kStartNs + at + gap + length, i, 0, static_cast<Activity>(i % 8)});
    at += gap + length;
  }
  const auto found = events({record(0, {0}, spans)});
  ASSERT_GT(found.size(), 200u);
  double end_us = 0;
  for (const json& event : found) {
    EXPECT_GE(event.at("ts").get<double>(), end_us - 1e-4);
    end_us = event.at("ts").get<double>() + event.at("dur").get<double>();
  }
}

}  // namespace
}  // namespace millrace::report
