#include "millrace/runtime/session.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "millrace/base/error.h"

namespace millrace::runtime {
namespace {

using backend::StepContext;
using graph::BufferId;
using graph::BufferRole;
using graph::Program;

// Persistent buffers are the same memory in every program of a session.
struct PersistentKey {
  BufferRole role;
  int which;  // the parameter, or images and labels apart
  auto operator<=>(const PersistentKey&) const = default;
};

PersistentKey key_of(const Program& program, BufferId id) {
  const graph::Buffer& buffer = program.buffers[id];
  if (buffer.param != graph::kNone) return {buffer.role, buffer.param};
  return {buffer.role, id == program.labels ? 1 : 0};
}

struct PersistentLayout {
  std::map<PersistentKey, size_t> offset;
  size_t bytes = 0;
};

void extend(PersistentLayout& layout, const Program& program, const std::vector<size_t>& buffer_bytes) {
  for (BufferId id = 0; id < static_cast<BufferId>(program.buffers.size()); ++id) {
    if (!is_persistent(program.buffers[id].role)) continue;
    if (layout.offset.emplace(key_of(program, id), layout.bytes).second) layout.bytes += align_up(buffer_bytes[id]);
  }
}

std::vector<MemoryItem> items_at_peak(const Program& program, const std::vector<size_t>& buffer_bytes,
                                      const MemoryPlan& plan) {
  std::map<BufferRole, size_t> by_role;
  auto count = [&](BufferId id) { by_role[program.buffers[id].role] += align_up(buffer_bytes[id]); };
  for (BufferId id = 0; id < static_cast<BufferId>(program.buffers.size()); ++id) {
    if (is_persistent(program.buffers[id].role)) count(id);
  }
  for (BufferId id : plan.alive_at_peak) count(id);
  std::vector<MemoryItem> items;
  for (const auto& [role, bytes] : by_role) items.push_back({name_of(role), bytes});
  items.push_back({"workspace", plan.scratch_at_peak});
  items.push_back({"gaps between buffers", plan.arena_bytes - plan.floor_bytes});
  return items;
}

}  // namespace

Metrics& Metrics::operator+=(const Metrics& other) {
  loss_sum += other.loss_sum;
  top1 += other.top1;
  top5 += other.top5;
  rows += other.rows;
  return *this;
}

Session::Session(const graph::Graph& graph, backend::Backend& backend, const SessionOptions& options)
    : graph_(graph), backend_(backend), options_(options) {
  train_ = prepare(graph::training_program(graph_, {options.microbatches, options.velocity}));
  if (options.evaluates) evaluate_ = prepare(graph::evaluation_program(graph_));
  lay_out();
  for (size_t i = 0; i < train_.program.nodes.size(); ++i) {
    node_times_.push_back({&train_.program.nodes[i], train_.kernels[i].algorithm, 0});
  }
}

Session::~Session() {
  if (memory_block_) backend_.release(memory_block_, memory_bytes_);
}

Session::Prepared Session::prepare(Program program) {
  Prepared prepared;
  prepared.program = std::move(program);
  for (BufferId id = 0; id < static_cast<BufferId>(prepared.program.buffers.size()); ++id) {
    prepared.buffer_bytes.push_back(backend_.bytes(graph_, prepared.program, id));
  }
  // Once without workspace, before kernels are measured on real memory, and once with it.
  std::vector<size_t> scratch(prepared.program.nodes.size(), 0);
  check_limit(prepared, scratch);
  for (size_t i = 0; i < prepared.program.nodes.size(); ++i) {
    prepared.kernels.push_back(backend_.prepare({graph_, prepared.program, prepared.program.nodes[i]}));
    scratch[i] = prepared.kernels.back().scratch_bytes;
  }
  check_limit(prepared, scratch);
  prepared.plan = plan_memory(prepared.program, prepared.buffer_bytes, scratch);
  return prepared;
}

void Session::check_limit(const Prepared& prepared, const std::vector<size_t>& scratch) const {
  if (options_.memory_limit == 0) return;
  const MemoryPlan plan = plan_memory(prepared.program, prepared.buffer_bytes, scratch);
  PersistentLayout persistent;
  extend(persistent, prepared.program, prepared.buffer_bytes);
  const size_t total = persistent.bytes + plan.arena_bytes + options_.loader_bytes;
  if (total <= options_.memory_limit) return;

  constexpr double kMiB = 1 << 20;
  auto items = items_at_peak(prepared.program, prepared.buffer_bytes, plan);
  items.push_back({"loading ahead", options_.loader_bytes});
  std::stable_sort(items.begin(), items.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  std::string sum;
  for (const MemoryItem& item : items) {
    if (static_cast<double>(item.bytes) < 0.5 * kMiB) continue;
    sum += fmt::format("{}{} {:.0f}", sum.empty() ? "" : " + ", item.what, static_cast<double>(item.bytes) / kMiB);
  }
  // What another micro-batch would take: all but what belongs to a parameter is proportional to it.
  auto total_at = [&](int64_t batch) {
    std::vector<size_t> bytes = prepared.buffer_bytes;
    for (size_t id = 0; id < bytes.size(); ++id) {
      if (prepared.program.buffers[id].param != graph::kNone) continue;
      bytes[id] = bytes[id] * static_cast<size_t>(batch) / static_cast<size_t>(graph_.batch());
    }
    PersistentLayout layout;
    extend(layout, prepared.program, bytes);
    return layout.bytes + plan_memory(prepared.program, bytes, scratch).arena_bytes;
  };
  // The loader holds the whole batch, in however many parts it is computed.
  auto loader_at = [&](int64_t batch) { return options_.loader_bytes / graph_.batch() * batch; };
  int64_t fits = 0;
  for (int64_t too_many = graph_.batch(); too_many - fits > 1;) {
    const int64_t batch = (fits + too_many) / 2;
    (total_at(batch) + loader_at(batch) <= options_.memory_limit ? fits : too_many) = batch;
  }
  const bool parts_help = total_at(1) + options_.loader_bytes <= options_.memory_limit;
  std::string advice = "not even one sample would fit: the model needs a larger machine";
  if (fits >= 1) {
    advice = fmt::format("about {} of {} samples would fit: write a smaller batch{}", fits * options_.microbatches,
                         graph_.batch() * options_.microbatches, parts_help ? " or more parallel.microbatches" : "");
  } else if (total_at(1) <= options_.memory_limit) {
    advice = fmt::format("loading {} samples a step is too much: write a smaller batch",
                         graph_.batch() * options_.microbatches);
  }
  fail_input("{} needs {:.0f} MiB ({} MiB), {} has {:.0f} MiB; {}", graph_.name, static_cast<double>(total) / kMiB, sum,
             options_.limit_reason, static_cast<double>(options_.memory_limit) / kMiB, advice);
}

void Session::lay_out() {
  PersistentLayout persistent;
  extend(persistent, train_.program, train_.buffer_bytes);
  size_t arena = train_.plan.arena_bytes;
  if (evaluate_) {
    extend(persistent, evaluate_->program, evaluate_->buffer_bytes);
    arena = std::max(arena, evaluate_->plan.arena_bytes);
  }
  memory_.items = items_at_peak(train_.program, train_.buffer_bytes, train_.plan);
  memory_.arena_bytes = arena;
  memory_.arena_floor_bytes = train_.plan.floor_bytes;
  memory_.planned_bytes = memory_bytes_ = persistent.bytes + arena;
  memory_block_ = static_cast<std::byte*>(backend_.allocate(memory_bytes_));

  auto locate = [&](Prepared& prepared) {
    for (BufferId id = 0; id < static_cast<BufferId>(prepared.program.buffers.size()); ++id) {
      if (is_persistent(prepared.program.buffers[id].role)) {
        prepared.buffers.push_back(memory_block_ + persistent.offset.at(key_of(prepared.program, id)));
      } else {
        const size_t offset = prepared.plan.buffer_offset[id];
        prepared.buffers.push_back(offset == MemoryPlan::kNoOffset ? nullptr
                                                                   : memory_block_ + persistent.bytes + offset);
      }
    }
    std::byte* arena_start = memory_block_ + persistent.bytes;
    for (size_t i = 0; i < prepared.program.nodes.size(); ++i) {
      backend::Bindings bindings;
      for (BufferId id : prepared.program.nodes[i].reads) bindings.reads.push_back(prepared.buffers[id]);
      for (BufferId id : prepared.program.nodes[i].writes) bindings.writes.push_back(prepared.buffers[id]);
      bindings.scratch = arena_start + prepared.plan.scratch_offset[i];
      prepared.tasks.push_back(prepared.kernels[i].bind(bindings));
    }
  };
  locate(train_);
  if (evaluate_) locate(*evaluate_);
  images_ = static_cast<float*>(train_.buffers[train_.program.images]);
  labels_ = static_cast<int32_t*>(train_.buffers[train_.program.labels]);
  metrics_ = static_cast<double*>(train_.buffers[train_.program.metrics]);
}

void Session::load(const state::State& state) {
  const Program& program = train_.program;
  for (BufferId id = 0; id < static_cast<BufferId>(program.buffers.size()); ++id) {
    const graph::Buffer& buffer = program.buffers[id];
    if (buffer.param == graph::kNone || !is_persistent(buffer.role)) continue;
    const std::string& name = graph_.params[buffer.param].name;
    const auto& tensors = buffer.role == BufferRole::Velocity ? state.velocity : state.params;
    const auto found = tensors.find(name);
    if (buffer.role == BufferRole::GradientSum || (buffer.role == BufferRole::Velocity && found == tensors.end())) {
      continue;  // fresh memory is zero
    }
    if (found == tensors.end()) fail_run("the state has no parameter {}", name);
    backend_.upload(graph_, program, id, found->second.data, train_.buffers[id]);
  }
}

void Session::store(state::State& state) const {
  const Program& program = train_.program;
  for (BufferId id = 0; id < static_cast<BufferId>(program.buffers.size()); ++id) {
    const graph::Buffer& buffer = program.buffers[id];
    if (buffer.param == graph::kNone || !is_persistent(buffer.role) || buffer.role == BufferRole::GradientSum) continue;
    auto& tensors = buffer.role == BufferRole::Velocity ? state.velocity : state.params;
    tensors[graph_.params[buffer.param].name] = {buffer.shape, read_buffer(id)};
  }
}

std::vector<float> Session::read_buffer(BufferId id) const {
  std::vector<float> plain(static_cast<size_t>(train_.program.buffers[id].shape.elements()));
  backend_.download(graph_, train_.program, id, train_.buffers[id], plain);
  return plain;
}

void Session::run(const std::vector<backend::Task>& tasks, size_t begin, size_t end, const StepContext& context) {
  if (!timing_) {
    for (size_t i = begin; i < end; ++i) tasks[i](context);
    return;
  }
  for (size_t i = begin; i < end; ++i) {
    const auto before = std::chrono::steady_clock::now();
    tasks[i](context);
    node_times_[i].seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
  }
}

Metrics Session::take_metrics() {
  const Metrics metrics{metrics_[graph::kLossSum], metrics_[graph::kTop1], metrics_[graph::kTop5],
                        metrics_[graph::kRows]};
  std::fill(metrics_, metrics_ + graph::kNumMetrics, 0.0);
  return metrics;
}

Metrics Session::train_step(int64_t step, int64_t samples, double learning_rate,
                            const std::function<int64_t(int)>& fill) {
  StepContext context;
  context.seed = options_.seed;
  context.step = step;
  context.inverse_samples = 1.0 / static_cast<double>(samples);
  context.learning_rate = static_cast<float>(learning_rate);
  for (int m = 0; m < options_.microbatches; ++m) {
    context.first_row = m * graph_.batch();
    context.rows = fill(m);
    if (context.rows == 0) continue;
    run(train_.tasks, 0, train_.program.first_update, context);
  }
  run(train_.tasks, train_.program.first_update, train_.tasks.size(), context);
  return take_metrics();
}

Metrics Session::evaluate(int64_t rows) {
  StepContext context;
  context.seed = options_.seed;
  context.rows = rows;
  for (const backend::Task& task : evaluate_->tasks) task(context);
  return take_metrics();
}

void Session::time_nodes(bool on) {
  timing_ = on;
  for (NodeTime& time : node_times_) time.seconds = 0;
}

}  // namespace millrace::runtime
