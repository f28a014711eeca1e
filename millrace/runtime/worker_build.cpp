// Building a worker: its sessions, its ends of the edges, and what it reads of the data.
#include <algorithm>
#include <numeric>
#include <utility>

#include "millrace/backend/style.h"
#include "millrace/base/error.h"
#include "millrace/model/model.h"
#include "millrace/plan/loading.h"
#include "millrace/plan/saving.h"
#include "millrace/runtime/worker.h"

namespace millrace::runtime {

using schedule::Direction;
using schedule::Pipeline;

namespace {

size_t find_crossing(const std::vector<graph::Crossing>& crossings, graph::ValueId value, int stage) {
  for (size_t i = 0; i < crossings.size(); ++i) {
    if (crossings[i].value == value && crossings[i].stage == stage) return i;
  }
  fail_run("value {} does not cross to stage {}", value, stage);
}

}  // namespace

Worker::Worker(const RunFacts& facts, const Wiring& wiring, int index, comm::Endpoint& endpoint,
               backend::Backend& backend, size_t memory_limit, const std::string& limit_reason)
    : facts_(facts),
      index_(index),
      endpoint_(endpoint),
      backend_(backend),
      window_(wiring.window()),
      timeline_(kTraceSpans) {
  const Pipeline& pipeline = facts.plan.pipeline;
  for (int s = 0; s < pipeline.num_stages(); ++s) {
    for (int r = 0; r < pipeline.num_replicas(s); ++r) {
      if (pipeline.stages[s][r] == index) add_stage(s, r, backend, memory_limit, limit_reason);
    }
  }
  for (Stage& stage : stages_) {
    for (int e = 0; e < static_cast<int>(pipeline.edges.size()); ++e) {
      const schedule::Edge& edge = pipeline.edges[e];
      if (edge.from != stage.stage && edge.to != stage.stage) continue;
      const bool entering = edge.to == stage.stage;
      const int other = entering ? edge.from : edge.to;
      for (int r = 0; r < pipeline.num_replicas(other); ++r) add_port(stage, wiring, e, entering, r);
    }
  }
  plan_snapshot(memory_limit);
}

Worker::~Worker() {
  for (Stage& stage : stages_) {
    close_data(stage);
    if (stage.landing.memory) backend_.release(stage.landing.memory, stage.landing.bytes);
  }
}

void Worker::close_data(Stage& stage) {
  stage.batch = nullptr;
  stage.batch_number = -1;
  stage.wants_next = false;
  if (!stage.loader) return;
  backend_.await_brought();
  for (const std::span<std::byte> buffer : stage.loader->buffers()) backend_.unpin(buffer);
  stage.loader.reset();
}

bool Worker::reads_samples(int stage) const {
  return facts_.plan.reads_features[stage] && !facts_.train_data->one_fixed_batch();
}

void Worker::add_stage(int stage, int replica, backend::Backend& backend, size_t memory_limit,
                       const std::string& reason) {
  const job::Job& job = facts_.job;
  const Pipeline& pipeline = facts_.plan.pipeline;
  Stage& added = stages_.emplace_back();
  added.stage = stage;
  added.replica = replica;
  added.rows = facts_.plan.rows(stage, replica);
  added.graph = model::training_graph(job, added.rows.size());

  SessionOptions options;
  options.microbatches = pipeline.synchronous() ? pipeline.microbatches : 1;
  options.rule = model::update_rule(job);
  options.evaluates = facts_.test_data != nullptr;
  options.seed = job.seed;
  options.memory_limit = memory_limit;
  options.limit_reason = reason;
  options.stage = facts_.plan.slice(stage);
  options.copies = {facts_.shape.slots[stage], facts_.shape.gradient_slots, pipeline.versions[stage]};
  options.recompute = job.parallel.recompute == job::Recompute::Stage && stage != facts_.loss_stage();
  options.blocks = job.parallel.recompute == job::Recompute::Block  ? Blocks::Again
                   : job.parallel.recompute == job::Recompute::Auto ? Blocks::AgainIfShort
                                                                    : Blocks::Kept;
  options.replicated = pipeline.num_replicas(stage) > 1;
  options.style = backend::style_of(job.device);
  options.loss_scale = job.loss_scale.start;
  options.bucket_bytes = static_cast<size_t>(job.parallel.bucket_mib * (1 << 20));
  options.loader_bytes = static_cast<size_t>(plan::loading_bytes(job, *facts_.train_data, facts_.plan, stage, replica));
  options.snapshot_bytes = static_cast<size_t>(plan::saving_bytes(job, added.graph, facts_.plan, stage, replica));
  added.session = std::make_unique<Session>(added.graph, backend, options);
  added.prefix = PrefixPath::make(facts_.prefix_cache, *added.session, backend, reads_samples(stage));
  prepare_landing(added);
  for (size_t i = 0; i < facts_.plan.ties.size(); ++i) {
    const plan::Tie& tie = facts_.plan.ties[i];
    if (std::find(tie.stages.begin(), tie.stages.end(), stage) == tie.stages.end()) continue;
    added.tied.push_back({facts_.plan.tie_group(i), added.session->tied_gradient(tie.param)});
  }
}

void Worker::prepare_landing(Stage& stage) {
  const size_t planned = stage.session->options().loader_bytes;
  if (!backend_.brings() || planned == 0) return;
  const plan::LandingBytes bytes = plan::landing_bytes(*facts_.train_data, facts_.plan.reads_features[stage.stage],
                                                       facts_.plan.reads_labels[stage.stage], stage.rows.size());
  Landing& landing = stage.landing;
  landing.labels = static_cast<size_t>(bytes.features);
  landing.bytes = static_cast<size_t>(bytes.all());
  if (stage.prefix) {
    // Instead of the features, or beside them.
    const data::Shortcut& shortcut = stage.prefix->shortcut();
    if (shortcut.with_features) {
      landing.shortened = landing.bytes;
    } else {
      landing.labels = std::max(landing.labels, plan::landing_piece(shortcut.row_bytes, stage.rows.size()));
    }
    landing.bytes = std::max(landing.labels + static_cast<size_t>(bytes.labels),
                             landing.shortened + plan::landing_piece(shortcut.row_bytes, stage.rows.size()));
  }
  landing.memory = static_cast<std::byte*>(backend_.allocate(landing.bytes));
}

void Worker::add_port(Stage& stage, const Wiring& wiring, int edge, bool entering, int other_replica) {
  const Pipeline& pipeline = facts_.plan.pipeline;
  const int other = entering ? pipeline.edges[edge].from : pipeline.edges[edge].to;
  schedule::Rows shared = facts_.plan.rows(other, other_replica);
  shared = {std::max(shared.begin, stage.rows.begin), std::min(shared.end, stage.rows.end)};
  if (shared.size() <= 0) return;

  Port port;
  port.edge = edge;
  port.peer = pipeline.stages[other][other_replica];
  port.entering = entering;
  const Session& session = *stage.session;
  const auto& crossings = entering ? session.training_program().inputs : session.training_program().outputs;
  const int from_replica = entering ? other_replica : stage.replica;
  const int to_replica = entering ? stage.replica : other_replica;
  const auto first_row = static_cast<size_t>(shared.begin - stage.rows.begin);
  for (size_t v = 0; v < facts_.plan.edges[edge].values.size(); ++v) {
    const size_t i = find_crossing(crossings, facts_.plan.edges[edge].values[v], other);
    Port::Piece piece;
    piece.activation_tag = wiring.channel(edge, v, Direction::Activation, from_replica, to_replica);
    piece.gradient_tag = wiring.channel(edge, v, Direction::Gradient, from_replica, to_replica);
    auto at = [&](const Wire& wire) {
      piece.bytes = static_cast<size_t>(shared.size()) * wire.row_bytes;
      return wire.data + first_row * wire.row_bytes;
    };
    for (int slot = 0; slot < session.options().copies.slots; ++slot) {
      piece.activation.push_back(at(entering ? session.input(i, slot) : session.output(i, slot)));
      if (!session.options().evaluates) continue;
      constexpr auto kEvaluation = Session::Use::Evaluation;
      piece.evaluation.push_back(
          at(entering ? session.input(i, slot, kEvaluation) : session.output(i, slot, kEvaluation)));
    }
    for (int slot = 0; slot < session.options().copies.gradient_slots; ++slot) {
      if (crossings[i].gradient == graph::kNone) continue;
      piece.gradient.push_back(at(entering ? session.input_gradient(i, slot) : session.output_gradient(i, slot)));
    }
    piece.activation_ticket.resize(piece.activation.size());
    piece.gradient_ticket.resize(piece.gradient.size());
    port.pieces.push_back(std::move(piece));
  }
  stage.ports.push_back(std::move(port));
}

void Worker::open_data(Stage& stage, int64_t first_step) {
  close_data(stage);
  Session& session = *stage.session;
  data::LoaderOptions options =
      plan::loader_options(facts_.job, facts_.plan, stage.stage, stage.replica, facts_.calendar.even(first_step));
  if (stage.prefix) {
    stage.prefix->begin(facts_.total_steps - first_step, static_cast<int64_t>(facts_.calendar.epoch_at(first_step)),
                        static_cast<int64_t>(facts_.calendar.epoch_at(facts_.total_steps - 1)));
    options.shortcut = &stage.prefix->shortcut();
  }
  if (plan::needs_loader(*facts_.train_data, facts_.plan, stage.stage, options)) {
    stage.loader = std::make_unique<data::Loader>(*facts_.train_data, options);
    for (const std::span<std::byte> buffer : stage.loader->buffers()) backend_.pin(buffer);
    stage.parts = static_cast<int>(options.ranges.size());
    return;
  }
  if (!options.features && !options.labels) return;
  const int slots = session.options().copies.slots;
  if (backend_.on_host()) {  // straight into the inputs: a buffer on the way would be memory that was not planned
    std::vector<int64_t> samples(static_cast<size_t>(stage.rows.size()));
    std::iota(samples.begin(), samples.end(), options.ranges[0].begin);
    const auto reader = facts_.train_data->reader();
    for (int slot = 0; slot < slots; ++slot) {
      reader->fill(samples, 0, static_cast<std::byte*>(session.features(slot)), session.labels(slot));
    }
    return;
  }
  data::Loader once(*facts_.train_data, options);
  const data::Batch& batch = once.next();
  for (int slot = 0; slot < slots; ++slot) session.put_input(slot, batch.features.data(), batch.labels.data());
}

void Worker::open_test_data(Stage& stage) {
  stage.batch_number = -1;
  const data::LoaderOptions options =
      plan::evaluation_options(facts_.job, facts_.plan, stage.stage, stage.replica, facts_.test_data->size());
  if (options.num_batches == 0 || (!options.features && !options.labels)) return;
  stage.test_loader = std::make_unique<data::Loader>(*facts_.test_data, options);
}

void Worker::abandon_memory() {
  for (Stage& stage : stages_) {
    if (stage.session) stage.session->abandon_memory();
  }
}

size_t Worker::planned_bytes() const {
  size_t bytes = snapshot_bytes_;
  for (const Stage& stage : stages_) {
    const SessionOptions& options = stage.session->options();
    bytes += stage.session->memory().planned_bytes + options.snapshot_bytes +
             std::max(options.loader_bytes, stage.landing.bytes) + (stage.prefix ? stage.prefix->device_bytes() : 0);
  }
  return bytes;
}

}  // namespace millrace::runtime
