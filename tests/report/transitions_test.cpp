#include "millrace/report/transitions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::report {
namespace {

using testing::HasSubstr;
using testing::Not;

Course course() {
  Course made{"run", 12, {}, {}};
  made.stretches.resize(3);
  made.transitions.resize(2);
  for (int i = 0; i < 3; ++i) {
    runtime::Stretch& stretch = made.stretches[static_cast<size_t>(i)];
    stretch.first_step = 100 * i;
    stretch.steps = 100;
    stretch.frozen = 4 * i;
    stretch.stages = 3 - i;
    stretch.workers = 4;
    stretch.replicas = 1 + i;
    stretch.batch = 64;
    stretch.step_s = 0.030 - 0.010 * i;
  }
  made.transitions[0].step = 100;
  made.transitions[0].why = "interval 1";
  made.transitions[0].squares = {4, 9};
  made.transitions[0].pause_s = 0.0425;
  made.transitions[0].moved_bytes = int64_t{3} << 32;
  made.transitions[0].predicted_step_s = 0.0191;
  made.transitions[1].step = 200;
  made.transitions[1].why = "interval 2";
  made.transitions[1].predicted_step_s = 0.0082;
  return made;
}

Course with_cache() {
  Course made = course();
  made.stretches[1].filling_step_s = 0.0213;
  made.stretches[1].cache_verdict = "cached: to be measured";
  made.stretches[2].filling_step_s = 0.0117;
  made.stretches[2].filled_step_s = 0.0094;
  made.stretches[2].cached = 0.75;
  made.transitions[0].predicted_filling_s = 0.0222;
  made.transitions[1].predicted_filling_s = 0.0111;
  made.transitions[1].kept = 4;
  return made;
}

TEST(Transitions, AreReadAsTheyWereWritten) {
  for (const Course& made : {course(), with_cache()}) {
    const Course read = course_from_json(nlohmann::json::parse(to_json(made).dump()));
    EXPECT_EQ(read.name, made.name);
    ASSERT_EQ(read.transitions.size(), made.transitions.size());
    for (size_t i = 0; i < made.transitions.size(); ++i) {
      EXPECT_EQ(read.transitions[i].kept, made.transitions[i].kept);
      EXPECT_EQ(read.transitions[i].moved_bytes, made.transitions[i].moved_bytes);
      EXPECT_EQ(read.transitions[i].squares, made.transitions[i].squares);
    }
    for (size_t i = 0; i < made.stretches.size(); ++i) {
      EXPECT_EQ(read.stretches[i].replicas, made.stretches[i].replicas);
      EXPECT_EQ(read.stretches[i].batch, made.stretches[i].batch);
    }
    EXPECT_EQ(transitions_table(read), transitions_table(made));
    EXPECT_EQ(cache_verdicts(read), cache_verdicts(made));
  }
}

TEST(Transitions, OfRunsBeforeThereWereFiguresOfTheCacheCanBeRead) {
  nlohmann::json json = nlohmann::json::parse(to_json(course()).dump());
  for (auto& stretch : json["stretches"]) {
    for (const char* key : {"replicas", "filling_step_ms", "filled_step_ms", "cache_verdict"}) stretch.erase(key);
  }
  for (auto& transition : json["transitions"]) {
    for (const char* key : {"kept", "predicted_filling_step_ms", "moved_bytes"}) transition.erase(key);
  }
  EXPECT_EQ(transitions_table(course_from_json(json)), transitions_table(course()));
}

TEST(Transitions, AStepStandsBesideWhatWasPredicted) {
  const std::string table = transitions_table(course());
  EXPECT_THAT(table, HasSubstr("a step takes  predicted"));
  EXPECT_THAT(table, HasSubstr("20.0 ms    19.1 ms"));
  EXPECT_THAT(table, HasSubstr("10.0 ms     8.2 ms"));
  EXPECT_THAT(table, Not(HasSubstr("first epoch")));
}

TEST(Transitions, WithACacheTheFirstEpochHasAPredictionOfItsOwn) {
  const std::string table = transitions_table(with_cache());
  EXPECT_THAT(table, HasSubstr("first epoch  predicted  after it  predicted"));
  EXPECT_THAT(table, HasSubstr("21.3 ms    22.2 ms         -    19.1 ms")) << "there was no later epoch";
  EXPECT_THAT(table, HasSubstr("11.7 ms    11.1 ms    9.4 ms     8.2 ms"));
  EXPECT_THAT(table, Not(HasSubstr("a step takes")));
}

TEST(Transitions, VerdictsOfTheCacheAreLines) {
  EXPECT_EQ(cache_verdicts(course()), "");
  EXPECT_EQ(cache_verdicts(with_cache()), "from step 100, what layers 1 to 4 make: cached: to be measured\n");
}

}  // namespace
}  // namespace millrace::report
