// A list that is ended early is a proper list: what is left of it, where every stage has finished whole updates.
#include <gtest/gtest.h>

#include <numeric>

#include "millrace/schedule/prover.h"
#include "schedule/pipelines.h"

namespace millrace::schedule {
namespace {

Schedule cut(const Schedule& whole, int microbatches) {
  Schedule left = whole;
  left.microbatches = microbatches;
  for (std::vector<Action>& actions : left.workers) {
    std::erase_if(actions, [&](const Action& action) { return last_microbatch(whole, action) >= microbatches; });
  }
  return left;
}

int whole_updates(const Pipeline& pipeline) {
  int all = pipeline.synchronous() ? pipeline.microbatches : 1;
  if (pipeline.synchronous() || pipeline.replicas == job::Replicas::Split) return all;
  for (const auto& workers : pipeline.stages) all = std::lcm(all, static_cast<int>(workers.size()));
  return all;
}

TEST(Cut, LeavesProvenLists) {
  for (const NamedPipeline& named : many_pipelines()) {
    const int align = whole_updates(named.pipeline);
    const int count = named.pipeline.synchronous() ? 3 : 4 * align + 1;
    const Schedule whole = lower(compute_schedule(named.pipeline, count));
    for (int left = align; left < whole.microbatches; left += align) {
      const Schedule some = cut(whole, left);
      ASSERT_NO_THROW(prove(some)) << named.name << ", " << left << " of " << whole.microbatches;
      size_t forwards = 0;
      for (const auto& actions : some.workers) {
        for (const Action& action : actions) forwards += action.kind == Kind::Forward ? 1 : 0;
      }
      size_t expected = 0;
      for (int s = 0; s < named.pipeline.num_stages(); ++s) {
        for (int r = 0; r < named.pipeline.num_replicas(s); ++r) {
          for (int m = 0; m < left; ++m) expected += takes(named.pipeline, s, r, m) ? 1 : 0;
        }
      }
      ASSERT_EQ(forwards, expected) << named.name;
    }
  }
}

}  // namespace
}  // namespace millrace::schedule
