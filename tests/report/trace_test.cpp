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

TEST(Trace, SaysWhatItHasNoRoomFor) {
  WorkerRecord worker = record(0, {0}, {span(Activity::Forward, 0, 10)});
  worker.left_out = {123, kStartNs + 5'000'000};
  const std::vector<WorkerRecord> records{worker};
  const auto found = events(records);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[1].at("name"), "123 spans not kept");
  EXPECT_EQ(found[1].at("ts"), 10);
  EXPECT_EQ(found[1].at("dur"), 4990);
  EXPECT_EQ(json::parse(chrome_trace(records)).at("otherData"), (json{{"spans", 1}, {"spans_left_out", 123}}));
}

// Four stages, then after 300 microseconds two replicas of one; the other workers are gone, and worker 3 comes back.
class TraceOfTrainings : public testing::Test {
 protected:
  static runtime::Stretch stretch(int frozen, int stages, int replicas, int64_t begin_us, int64_t end_us) {
    runtime::Stretch made;
    made.frozen = frozen;
    made.stages = stages;
    made.replicas = replicas;
    made.workers = stages * replicas;
    made.begin_ns = kStartNs + begin_us * 1000;
    made.end_ns = kStartNs + end_us * 1000;
    return made;
  }
  static std::vector<WorkerRecord> training(int stages, int workers, int64_t begin_us) {
    std::vector<WorkerRecord> records;
    for (int w = 0; w < workers; ++w) {
      records.push_back(record(w, {w % stages}, {span(Activity::Forward, begin_us, begin_us + 100, w % stages)}));
    }
    return records;
  }
  TraceOfTrainings() {
    course_.layers = 12;
    course_.stretches = {stretch(0, 4, 1, 0, 110), stretch(6, 1, 2, 390, 500), stretch(8, 1, 4, 590, 700)};
    course_.transitions.resize(2);
    course_.transitions[0].step = 40;
    course_.transitions[0].why = "layer 7 has the \"smallest\" gradients";
    course_.transitions[0].plan = "dp on 0:0-1";
    trace_ = json::parse(chrome_trace(course_, trainings_));
  }
  std::vector<json> named(const std::string& name) const {
    std::vector<json> found;
    for (const json& event : trace_.at("traceEvents")) {
      if (event.at("name") == name) found.push_back(event);
    }
    return found;
  }

  Course course_;
  const std::vector<std::vector<WorkerRecord>> trainings_ = {training(4, 4, 10), training(1, 2, 400),
                                                             training(1, 4, 600)};
  json trace_;
};

TEST_F(TraceOfTrainings, AllAreOnOneAxis) {
  std::map<int, std::vector<double>> begins;
  for (const json& event : named("F")) begins[event.at("tid")].push_back(event.at("ts"));
  EXPECT_EQ(begins, (std::map<int, std::vector<double>>{
                        {1, {10, 400, 600}}, {2, {10, 400, 600}}, {3, {10, 600}}, {4, {10, 600}}}));
}

TEST_F(TraceOfTrainings, WorkersPauseBetweenThemOrAreNotInUse) {
  std::map<int, std::vector<std::pair<double, double>>> pauses, unused;
  for (const json& event : named("pause")) pauses[event.at("tid")].emplace_back(event.at("ts"), event.at("dur"));
  for (const json& event : named("not in use")) unused[event.at("tid")].emplace_back(event.at("ts"), event.at("dur"));
  const std::vector<std::pair<double, double>> twice{{110, 290}, {500, 100}}, once{{110, 490}};
  EXPECT_EQ(pauses, (std::map<int, std::vector<std::pair<double, double>>>{{1, twice}, {2, twice}}));
  EXPECT_EQ(unused, (std::map<int, std::vector<std::pair<double, double>>>{{3, once}, {4, once}}));
}

TEST_F(TraceOfTrainings, ATrackIsNamedByAllThatItsWorkerWas) {
  std::vector<std::string> tracks;
  for (const json& event : named("thread_name")) tracks.push_back(event.at("args").at("name"));
  EXPECT_EQ(tracks, (std::vector<std::string>{
                        "trainings", "worker 0 (0:0) stage 0", "worker 1 (0:1) stage 1, then (0:1) stage 0",
                        "worker 2 (0:2) stage 2, then (0:2) stage 0", "worker 3 (0:3) stage 3, then (0:3) stage 0"}));
}

TEST_F(TraceOfTrainings, WhatFrozeAndWhyStandsAboveThem) {
  const auto first = named("0 of 12 layers frozen, 4 stages, 1 replica");
  const auto second = named("6 of 12 layers frozen, 1 stage, 2 replicas");
  ASSERT_EQ(first.size(), 1u);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(first[0].at("ts"), 0);
  EXPECT_EQ(second[0].at("ts"), 390);
  EXPECT_EQ(second[0].at("dur"), 110);
  const auto pause = named("pause before step 40");
  ASSERT_EQ(pause.size(), 1u);
  EXPECT_EQ(pause[0].at("ts"), 110);
  EXPECT_EQ(pause[0].at("dur"), 280);
  EXPECT_EQ(pause[0].at("args").at("why"), "layer 7 has the \"smallest\" gradients");
  EXPECT_EQ(pause[0].at("args").at("plan"), "dp on 0:0-1");
}

TEST_F(TraceOfTrainings, FrozenLayersStagesAndReplicasAreCounters) {
  for (const auto& [name, values] : std::map<std::string, std::vector<int>>{
           {"frozen layers", {0, 0, 6, 6, 8, 8}}, {"stages", {4, 4, 1, 1, 1, 1}}, {"replicas", {1, 1, 2, 2, 4, 4}}}) {
    std::vector<int> found;
    std::vector<double> at;
    for (const json& event : named(name)) {
      EXPECT_EQ(event.at("ph"), "C");
      found.push_back(event.at("args").at(name));
      at.push_back(event.at("ts"));
    }
    EXPECT_EQ(found, values) << name;
    EXPECT_EQ(at, (std::vector<double>{0, 110, 390, 500, 590, 700}));
  }
}

TEST_F(TraceOfTrainings, ARunOfOneTrainingHasNoCourse) {
  course_.stretches.resize(1);
  course_.transitions.clear();
  EXPECT_EQ(chrome_trace(course_, std::span(trainings_).first(1)), chrome_trace(trainings_[0]));
}

}  // namespace
}  // namespace millrace::report
