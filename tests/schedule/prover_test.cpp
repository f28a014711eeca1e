#include "millrace/schedule/prover.h"

#include <gmock/gmock.h>

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

}  // namespace
}  // namespace millrace::schedule
