// Weight versions are a ring: an update writes each weight once, into the next version, and nothing is copied.
#include "runtime/session_harness.h"

namespace millrace::runtime {
namespace {

// Counts tasks that write weights, and bytes moved by any other way into a version.
class CountingBackend : public WrappedBackend {
 public:
  using WrappedBackend::WrappedBackend;

  backend::Kernel prepare(const backend::NodeView& view) override {
    backend::Kernel kernel = WrappedBackend::prepare(view);
    bool writes_weight = false;
    for (graph::BufferId id : view.node.writes) {
      writes_weight |= view.program.buffers[id].role == graph::BufferRole::Weight;
    }
    if (!writes_weight) return kernel;
    EXPECT_EQ(view.node.kind, graph::OpKind::SgdStep);
    auto bind = kernel.bind;
    kernel.bind = [this, bind](const backend::Bindings& bindings) -> backend::Task {
      if (bindings.reads[0] != bindings.writes[0]) ++into_another_version;
      return [this, task = bind(bindings)](const backend::StepContext& context) {
        ++weights_written;
        task(context);
      };
    };
    return kernel;
  }
  void upload(const graph::Graph& graph, const graph::Program& program, graph::BufferId buffer,
              std::span<const float> plain, void* device) override {
    ++uploads;
    WrappedBackend::upload(graph, program, buffer, plain, device);
  }

  int weights_written = 0, into_another_version = 0, uploads = 0;
};

TEST(Versions, AnUpdateWritesEachWeightOnceAndCopiesNothing) {
  const auto reference = backend::make_reference_backend(kMomentum);
  const graph::Graph graph = small_network(4);
  const int params = static_cast<int>(graph.params.size());
  for (int versions : {1, 2, 4}) {
    CountingBackend counting(*reference);
    Session session(graph, counting,
                    {.evaluates = false, .copies = {.slots = 1, .gradient_slots = 1, .versions = versions}});
    session.load(state::initial_state(graph, 1));
    const int uploads = counting.uploads;
    EXPECT_EQ(counting.into_another_version, versions == 1 ? 0 : params * versions);
    for (int step = 1; step <= 7; ++step) {
      train(session, graph, 1, {.steps = 1, .samples = 4, .first_step = step});
      EXPECT_EQ(counting.weights_written, step * params);
    }
    EXPECT_EQ(counting.uploads, uploads);
    EXPECT_EQ(session.updates(), 7);
  }
}

TEST(Versions, OlderVersionsStayUntilTheRingComesRound) {
  const auto reference = backend::make_reference_backend(kMomentum);
  const graph::Graph graph = small_network(4);
  Session session(graph, *reference, {.evaluates = false, .copies = {.slots = 1, .gradient_slots = 1, .versions = 3}});
  session.load(state::initial_state(graph, 1));
  for (int64_t row = 0; row < 4; ++row) put_sample(session, graph, row, row);
  backend::StepContext context;
  context.rows = 4;
  context.inverse_samples = 0.25;
  context.learning_rate = 0.1F;
  auto loss_at = [&](int64_t version) {
    session.forward({0, 0, version, 0}, context);
    return session.take_metrics().loss_sum;
  };
  const double first = loss_at(0);
  auto step = [&](int64_t update) {
    session.forward({0, 0, update, update}, context);
    session.take_metrics();
    session.backward(Session::kWhole, {0, 0, update, update}, context);
    session.update(Session::kWhole, update, context);
  };
  step(0);
  const double second = loss_at(1);
  EXPECT_NE(second, first);
  step(1);
  EXPECT_EQ(loss_at(0), first);
  EXPECT_EQ(loss_at(1), second);
  step(2);  // takes the place of version 0
  EXPECT_EQ(loss_at(1), second);
  EXPECT_NE(loss_at(3), first);
}

}  // namespace
}  // namespace millrace::runtime
