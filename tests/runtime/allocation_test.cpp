// No allocation per step: operator new is counted in this binary, and every task apart from the rest of the step.
#include <gtest/gtest.h>

#include <map>

#include "base/counted_new.h"
#include "runtime/session_harness.h"

namespace millrace::runtime {
namespace {

using graph::OpKind;

// oneDNN copies the arguments of each primitive it runs, up to eight times; a node is at most its primitive and two
// reorders.
constexpr int64_t kNewsOfOneDnn = 3 * 8;

struct Count {
  int64_t runs = 0;
  int64_t news = 0;
};

// Counts allocations inside each task, by kind of operator.
class CountingBackend : public WrappedBackend {
 public:
  using WrappedBackend::WrappedBackend;
  backend::Kernel prepare(const backend::NodeView& view) override {
    backend::Kernel kernel = inner_.prepare(view);
    Count& count = counts[view.node.kind];
    kernel.bind = [bind = std::move(kernel.bind), &count](const backend::Bindings& bindings) -> backend::Task {
      return [task = bind(bindings), &count](const backend::StepContext& context) {
        const int64_t before = news;
        task(context);
        count.news += news - before;
        ++count.runs;
      };
    };
    return kernel;
  }
  int64_t in_tasks() const {
    int64_t sum = 0;
    for (const auto& [kind, count] : counts) sum += count.news;
    return sum;
  }
  std::map<OpKind, Count> counts;
};

class AllocationTest : public EachBackend {};
EACH_BACKEND(AllocationTest);

TEST_P(AllocationTest, AStepAllocatesNothing) {
  for (int microbatches : {1, 2}) {
    for (const graph::Graph& graph : {small_network(4), residual_network(4)}) {
      CountingBackend counting(*backend_);
      Session session(graph, counting, {.microbatches = microbatches});
      session.load(state::initial_state(graph, 1));
      for (int64_t row = 0; row < 4; ++row) put_sample(session, graph, row, row);
      const std::function<int64_t(int)> fill = [](int) { return 4; };
      session.train_step(0, 4 * microbatches, 0.01, fill);
      session.evaluate(4);

      for (auto& [kind, count] : counting.counts) count = {};
      const int64_t before = news;
      session.train_step(1, 4 * microbatches, 0.01, fill);
      session.evaluate(4);
      EXPECT_EQ(news - before - counting.in_tasks(), 0) << "the session itself allocates";

      for (const auto& [kind, count] : counting.counts) {
        EXPECT_GT(count.runs, 0) << name_of(kind);
        const bool onednn = kind == OpKind::Conv2d || kind == OpKind::Linear || kind == OpKind::Flatten;
        if (GetParam() == std::string("cpu") && onednn) {
          EXPECT_LE(count.news, kNewsOfOneDnn * count.runs) << name_of(kind) << ", " << count.runs << " runs";
        } else {
          EXPECT_EQ(count.news, 0) << name_of(kind);
        }
      }
    }
  }
}

}  // namespace
}  // namespace millrace::runtime
