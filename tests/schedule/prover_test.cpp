#include "millrace/schedule/prover.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "millrace/schedule/csv.h"
#include "millrace/schedule/generators.h"
#include "schedule/pipelines.h"

namespace millrace::schedule {
namespace {

using job::Mode;
using testing::HasSubstr;

std::string fault_of(const Schedule& schedule) {
  const std::optional<Fault> fault = find_fault(schedule);
  return fault ? to_text(schedule, *fault) : "";
}

TEST(Prover, AcceptsEveryScheduleOfTheModes) {
  int count = 0;
  for (const auto& [name, pipeline] : many_pipelines()) {
    for (const int updates : {1, 2, 3, 12}) {
      EXPECT_EQ(fault_of(lower(compute_schedule(pipeline, updates))), "") << name << ", " << updates << " updates";
      ++count;
    }
  }
  EXPECT_GT(count, 1000);
}

TEST(Prover, AcceptsStagesThatAgreeOnSteps) {
  int count = 0;
  for (auto [name, pipeline] : many_pipelines()) {
    std::set<int> workers;
    size_t replicas = 0;
    for (const auto& stage : pipeline.stages) {
      workers.insert(stage.begin(), stage.end());
      replicas += stage.size();
    }
    const bool in_turn =
        !pipeline.synchronous() && pipeline.replicas == job::Replicas::RoundRobin && replicas > pipeline.stages.size();
    if (workers.size() != replicas || in_turn) continue;  // plans refuse these
    // Updates of replicas wait until the next forward, which may wait for the first stage's: refused by the proof.
    if (!pipeline.synchronous() && !pipeline.ahead.empty()) continue;
    pipeline.agrees_on_steps = true;
    for (const int updates : {1, 3}) {
      EXPECT_EQ(fault_of(lower(compute_schedule(pipeline, updates))), "") << name << ", " << updates << " updates";
      ++count;
    }
  }
  EXPECT_GT(count, 100);
}

TEST(Prover, AcceptsEvaluation) {
  for (const auto& [name, pipeline] : many_pipelines()) {
    for (const int microbatches : {1, 2, 7}) {
      EXPECT_EQ(fault_of(lower(evaluation_schedule(pipeline, microbatches))), "") << name << ", " << microbatches;
    }
  }
}

TEST(Prover, AcceptsInterleavedAndZeroBubbleSchedules) {
  for (int p = 1; p <= 6; ++p) {
    for (int m = 1; m <= 3 * p; ++m) {
      EXPECT_EQ(fault_of(lower(zb_h1_schedule(p, m))), "") << p << " workers, " << m << " micro-batches";
      EXPECT_EQ(fault_of(lower(zb_v_schedule(p, m))), "") << p << " workers, " << m << " micro-batches";
      for (int v = 1; v <= 4 && m % p == 0; ++v) {
        EXPECT_EQ(fault_of(lower(interleaved_schedule(p, v, m))), "") << p << " workers, " << m << " micro-batches";
      }
    }
  }
}

// All forwards in one order, then all backwards in another, the same on every worker.
Schedule in_orders(int num_stages, const std::vector<int>& forwards, const std::vector<int>& backwards) {
  std::string text;
  for (int stage = 0; stage < num_stages; ++stage) {
    for (const int m : forwards) text += fmt::format("{}F{},", stage, m);
    for (const int m : backwards) text += fmt::format("{}B{},", stage, m);
    text += '\n';
  }
  return read_csv(text, "list.csv");
}

TEST(Prover, AcceptsMicrobatchesInAnyOrder) {
  std::vector<int> forwards{0, 1, 2, 3}, backwards{3, 2, 1, 0};
  EXPECT_EQ(fault_of(lower(in_orders(3, forwards, backwards))), "");
  do {
    EXPECT_EQ(fault_of(lower(in_orders(3, forwards, {0, 1, 2, 3}))), "");
    EXPECT_EQ(fault_of(lower(in_orders(3, {0, 1, 2, 3}, forwards))), "");
    EXPECT_EQ(fault_of(lower(in_orders(3, forwards, forwards))), "");
  } while (std::next_permutation(forwards.begin(), forwards.end()));
}

TEST(Prover, LoweringFindsSlotsWhereMicrobatchesMeet) {
  // Micro-batches 0 and 2 are alive together: two slots would do for their number, but both would be slot 0.
  Schedule compute = read_csv("0F0,0F2,0B0,0F1,0B1,0B2\n", "list.csv");
  compute.pipeline.multi_buffer = false;
  const Schedule schedule = lower(compute);
  EXPECT_EQ(schedule.slots[0], 3);
  EXPECT_EQ(fault_of(schedule), "");
}

// A schedule of two stages to be spoilt in one place.
Schedule two_stages() { return lower(compute_schedule(chain(Mode::OneFOneB, 2, 3), 1)); }

size_t find(const Schedule& schedule, int worker, const std::string& text) {
  const std::vector<Action>& list = schedule.workers[worker];
  for (size_t i = 0; i < list.size(); ++i) {
    if (to_text(schedule, list[i]) == text) return i;
  }
  throw std::runtime_error("no " + text);
}

Action& at(Schedule& schedule, int worker, const std::string& text) {
  return schedule.workers[worker][find(schedule, worker, text)];
}

void drop(Schedule& schedule, int worker, const std::string& text) {
  std::vector<Action>& list = schedule.workers[worker];
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(find(schedule, worker, text)));
}

TEST(Prover, NamesWhatIsMissing) {
  Schedule schedule = two_stages();
  drop(schedule, 1, "1B2");
  EXPECT_EQ(fault_of(schedule), "worker 1: the backward of micro-batch 2 on stage 1 is missing");
  schedule = two_stages();
  drop(schedule, 0, "SEND act 0>1 m1 to 1");
  EXPECT_EQ(fault_of(schedule), "worker 0: SEND act 0>1 m1 to 1 is missing");
  schedule = two_stages();
  drop(schedule, 0, "STEP 0 u0");
  EXPECT_EQ(fault_of(schedule), "worker 0: STEP 0 u0 is missing");
}

TEST(Prover, NamesWhatIsDouble) {
  Schedule schedule = two_stages();
  schedule.workers[0].push_back(at(schedule, 0, "0B1"));
  EXPECT_THAT(fault_of(schedule), HasSubstr("(0B1): is done already, by action"));
  schedule = two_stages();
  schedule.workers[1].push_back(at(schedule, 1, "RECV act 0>1 m0 from 0"));
  EXPECT_THAT(fault_of(schedule), HasSubstr("(RECV act 0>1 m0 from 0): is done already, by action"));
}

TEST(Prover, NamesMessagesThatNobodyNeeds) {
  Schedule schedule = two_stages();
  at(schedule, 0, "SEND act 0>1 m1 to 1").peer = 0;
  EXPECT_THAT(fault_of(schedule), HasSubstr("the pipeline needs no such message between workers 0 and 0"));
}

TEST(Prover, NamesTheBufferThatIsOverwritten) {
  Schedule schedule = two_stages();
  ASSERT_EQ(schedule.slots[0], 3);
  schedule.slots[0] = 1;
  EXPECT_THAT(fault_of(schedule),
              HasSubstr("(0F1): overwrites activation slot 0 of stage 0, which holds micro-batch 0 until action"));
}

TEST(Prover, NamesTheBufferThatIsReadTooEarly) {
  Schedule schedule = two_stages();
  std::swap(at(schedule, 0, "0F1"), at(schedule, 0, "SEND act 0>1 m1 to 1"));
  EXPECT_THAT(fault_of(schedule), HasSubstr("(SEND act 0>1 m1 to 1): reads its buffer before action"));
  schedule = two_stages();
  std::swap(at(schedule, 1, "1F1"), at(schedule, 1, "RECV act 0>1 m1 from 0"));
  EXPECT_THAT(fault_of(schedule), HasSubstr("(1F1): reads its buffer before action"));
}

TEST(Prover, NamesVersionsThatAreNotThere) {
  Schedule schedule = lower(compute_schedule(chain(Mode::PipeDream, 2, 1), 6));
  EXPECT_EQ(fault_of(schedule), "");
  at(schedule, 0, "0B3").version += 1;
  EXPECT_THAT(fault_of(schedule), HasSubstr("(0B3): reads version 3 of the weights; its mode promises 2"));
  schedule = lower(compute_schedule(chain(Mode::PipeDream, 2, 1), 6));
  const auto step = schedule.workers[1].begin() + static_cast<std::ptrdiff_t>(find(schedule, 1, "STEP 1 u2"));
  const auto forward = schedule.workers[1].begin() + static_cast<std::ptrdiff_t>(find(schedule, 1, "1F3"));
  std::rotate(step, step + 1, forward + 1);
  EXPECT_THAT(fault_of(schedule), HasSubstr("(1F3): reads version 3 of the weights; the newest is 2"));
}

TEST(Prover, NamesTheSmallestCycle) {
  const Schedule crossed = lower(read_csv("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n2F0,2B0,2F1,2B1\n", "crossed.csv"));
  const std::string fault = fault_of(crossed);
  EXPECT_THAT(fault, HasSubstr("waits for ever: it needs action"));
  EXPECT_THAT(fault, HasSubstr("(RECV act 0>1 m1 from 0)")) << fault;
  EXPECT_THAT(fault, testing::Not(HasSubstr("worker 2"))) << "worker 2 only waits for the two that wait for each other";
}

TEST(Prover, RefusesWithOneLine) {
  Schedule schedule = two_stages();
  schedule.gradient_slots = 0;
  try {
    prove(schedule);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "the schedule cannot run: 0 gradient slots; at least 1 is needed");
  }
}

TEST(Prover, LooksAtComputeActionsAlone) {
  EXPECT_FALSE(find_compute_fault(zb_v_schedule(3, 5)));
  const Schedule backwards = read_csv("0B0,0F0\n", "list.csv");
  EXPECT_EQ(to_text(backwards, find_compute_fault(backwards).value()),
            "worker 0, action 0 (0B0): comes before its forward");
  const Schedule half = read_csv("0F0,0I0\n", "list.csv");
  EXPECT_EQ(to_text(half, find_compute_fault(half).value()),
            "worker 0: the weight gradient of micro-batch 0 on stage 0 is missing");
}

// Grows with the lists alone: this would take hours if it were quadratic.
TEST(Prover, LargeSchedulesAreNoMatter) {
  for (const Mode mode : {Mode::GPipe, Mode::OneFOneB}) {
    EXPECT_EQ(fault_of(lower(compute_schedule(chain(mode, 64, 256), 1))), "");
  }
  EXPECT_EQ(fault_of(lower(compute_schedule(chain(Mode::PipeDream, 64, 1), 256))), "");
  EXPECT_EQ(fault_of(lower(compute_schedule(replicated(Mode::OneFOneB, job::Replicas::Split, {32, 16, 16}, 256), 1))),
            "");
}

}  // namespace
}  // namespace millrace::schedule
