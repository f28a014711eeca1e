#include "millrace/runtime/run_records.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace millrace::runtime {
namespace {

WorkerRecord record(int worker, size_t spans, int64_t first_ns = 0) {
  WorkerRecord made;
  made.worker = worker;
  made.host = "mill";
  made.device = "0:0";
  for (size_t i = 0; i < spans; ++i) {
    const auto begin = first_ns + static_cast<int64_t>(10 * i);
    made.spans.push_back({begin, begin + 7, static_cast<int64_t>(i), 0, Activity::Forward});
  }
  return made;
}

TEST(FairShare, LeavesThoseWhoWantLittleWhatTheyWant) {
  EXPECT_EQ(fair_share(std::vector<size_t>{10, 200, 300}, 100), 45u);
  EXPECT_EQ(fair_share(std::vector<size_t>{10, 20, 30}, 60), 30u);
  EXPECT_EQ(fair_share(std::vector<size_t>{10, 20, 30}, 59), 29u);
  EXPECT_EQ(fair_share(std::vector<size_t>{1000}, 100), 100u);
  EXPECT_EQ(fair_share(std::vector<size_t>{}, 100), 100u);
}

TEST(FairShare, GivesOutNoMoreThanThereIsAndLeavesNoRoomUnused) {
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    std::vector<size_t> wanted(1 + random() % 9);
    for (size_t& one : wanted) one = random() % 1000;
    const size_t all = random() % 3000;
    const auto given = [&](size_t share) {
      return std::accumulate(wanted.begin(), wanted.end(), size_t{0},
                             [&](size_t sum, size_t one) { return sum + std::min(one, share); });
    };
    const size_t share = fair_share(wanted, all);
    EXPECT_LE(given(share), all);
    const size_t wanted_in_all = given(1000);
    if (wanted_in_all > all) {
      EXPECT_GT(given(share + 1), all);
    } else {
      EXPECT_EQ(given(share), wanted_in_all);
    }
  }
}

TEST(RunRecords, KeepsTheFirstSpansOfEveryTraining) {
  RunRecords records(100);
  for (int64_t training = 0; training < 4; ++training) records.add({record(0, 80, 10'000 * training)});
  ASSERT_EQ(records.trainings().size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const WorkerRecord& kept = records.trainings()[i][0];
    ASSERT_EQ(kept.spans.size(), 25u) << i;
    EXPECT_EQ(kept.spans[0].begin_ns, static_cast<int64_t>(10'000 * i));
    EXPECT_EQ(kept.spans[24].microbatch, 24);
    EXPECT_EQ(kept.left_out.spans, 55);
    EXPECT_EQ(kept.left_out.until_ns, static_cast<int64_t>(10'000 * i + 797));
  }
}

TEST(RunRecords, DoNotGrowWithTheNumberOfTrainings) {
  RunRecords records(1000);
  for (int training = 0; training < 300; ++training) records.add({record(0, 500), record(1, 3)});
  std::vector<size_t> spans(2);
  size_t memory = 0;
  for (const auto& training : records.trainings()) {
    for (const WorkerRecord& one : training) {
      spans[static_cast<size_t>(one.worker)] += one.spans.size();
      memory += one.spans.capacity();
    }
  }
  EXPECT_LE(spans[0], 1000u);
  EXPECT_GE(spans[0], 900u);  // three each
  EXPECT_EQ(spans[1], 900u) << "one worker's spans take nothing from another's";
  EXPECT_LE(memory, 2000u);
}

TEST(RunRecords, WhatWasLeftOutBeforeIsCounted) {
  RunRecords records(10);
  WorkerRecord full = record(0, 8);
  full.left_out = {5, 4'000};
  records.add({full});
  EXPECT_EQ(records.trainings()[0][0].left_out.spans, 5);
  records.add({record(0, 8, 10'000)});
  EXPECT_EQ(records.trainings()[0][0].left_out.spans, 8);
  EXPECT_EQ(records.trainings()[0][0].left_out.until_ns, 4'000);
}

TEST(RunRecords, OfAllProcessesComeTogetherTrainingByTraining) {
  WorkerRecord first = record(0, 2), second = record(1, 3);
  second.left_out = {9, 70};
  second.rows_fetched = 12;
  second.rows_computed = 30;
  second.cache_verdict = "cached: \"to be measured\"";
  const auto merged = merge_records({to_text({{first}, {first}}), to_text({{second}, {second}})});
  ASSERT_EQ(merged.size(), 2u);
  for (const std::vector<WorkerRecord>& training : merged) {
    ASSERT_EQ(training.size(), 2u);
    EXPECT_EQ(training[0].worker, 0);
    EXPECT_EQ(training[1].worker, 1);
    EXPECT_EQ(training[1].spans.size(), 3u);
    EXPECT_EQ(training[1].spans[2].end_ns, 27);
    EXPECT_EQ(training[1].left_out.spans, 9);
    EXPECT_EQ(training[1].left_out.until_ns, 70);
    EXPECT_EQ(training[1].rows_fetched, 12);
    EXPECT_EQ(training[1].rows_computed, 30);
    EXPECT_EQ(training[1].cache_verdict, "cached: \"to be measured\"");
  }
}

}  // namespace
}  // namespace millrace::runtime
