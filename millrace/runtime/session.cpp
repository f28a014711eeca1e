#include "millrace/runtime/session.h"

#include <algorithm>
#include <array>
#include <utility>

#include "millrace/base/error.h"

namespace millrace::runtime {

using backend::StepContext;
using graph::BufferId;
using graph::BufferRole;
using graph::Program;

namespace {

double size_of(const Program& program, size_t node) {
  return static_cast<double>(program.read_shape(program.nodes[node], 0).elements());
}

}  // namespace

Metrics& Metrics::operator+=(const Metrics& other) {
  loss_sum += other.loss_sum;
  top1 += other.top1;
  top5 += other.top5;
  rows += other.rows;
  for (size_t i = 0; i < figures.size(); ++i) figures[i] += other.figures[i];
  return *this;
}

Session::Session(const graph::Graph& graph, backend::Backend& backend, const SessionOptions& options)
    : graph_(graph), backend_(backend), options_(options) {
  remakes_blocks_ = options.blocks == Blocks::Again ||
                    (options.blocks == Blocks::AgainIfShort && !fits(training_program(/*remakes_blocks=*/false)));
  train_ = prepare(training_program(remakes_blocks_));
  if (options.evaluates) evaluate_ = prepare(graph::evaluation_program(graph_, options.stage));
  allocate();
  bind(train_, 0);
  if (evaluate_) bind(*evaluate_, 1);
  bind_buckets();
  find_stretches();
  backend_.pin(std::as_writable_bytes(std::span(landed_)));
  runs_again_ = memory::between(options_.copies, options_.recompute) == memory::Between::Again;
  for (size_t i = 0; i < train_.program.nodes.size(); ++i) {
    node_times_.push_back({&train_.program.nodes[i], train_.kernels[i].algorithm, 0, train_.kernels[i].scratch_bytes});
  }
}

Session::~Session() {
  backend_.unpin(std::as_writable_bytes(std::span(landed_)));
  if (memory_block_) backend_.release(memory_block_, layout_->bytes());
}

Program Session::training_program(bool remakes_blocks) const {
  const bool keeps =
      graph::keeps_gradients(graph_, options_.style, options_.rule, options_.replicated, options_.copies.slots);
  return graph::training_program(
      graph_, {options_.microbatches, options_.rule, keeps, options_.stage, options_.style, remakes_blocks});
}

// As far as can be known before kernels are prepared: their workspace is yet to come.
bool Session::fits(const Program& program) const {
  if (options_.memory_limit == 0) return true;
  std::vector<size_t> bytes;
  for (BufferId id = 0; id < static_cast<BufferId>(program.buffers.size()); ++id) {
    bytes.push_back(backend_.bytes(graph_, program, id));
  }
  const memory::MemoryPlan memory = plan(program, bytes, std::vector<size_t>(program.nodes.size(), 0));
  const memory::StageLayout layout(options_.copies, {{program, bytes, memory}});
  constexpr double kForWorkspace = 1.1;
  return kForWorkspace * static_cast<double>(layout.bytes()) +
             static_cast<double>(options_.loader_bytes + options_.snapshot_bytes) <=
         static_cast<double>(options_.memory_limit);
}

memory::MemoryPlan Session::plan(const Program& program, const std::vector<size_t>& bytes,
                                 const std::vector<size_t>& scratch) const {
  return memory::plan_memory(program, bytes, scratch, memory::between(options_.copies, options_.recompute));
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
  const Program& made = prepared.program;
  prepared.kernels.resize(made.nodes.size());
  prepared.together.assign(made.nodes.size(), 0);
  for (size_t i = 0; i < made.nodes.size(); i += prepared.together[i]) {
    const size_t count = prepared.together[i] = backend_.together(made, i, largest_group(made, i));
    std::vector<backend::NodeView> views;
    for (size_t node = i; node < i + count; ++node) views.push_back({graph_, made, made.nodes[node]});
    prepared.kernels[i] = count == 1 ? backend_.prepare(views[0]) : backend_.prepare_together(views);
    scratch[i] = prepared.kernels[i].scratch_bytes;
  }
  check_limit(prepared, scratch);
  prepared.plan = plan(prepared.program, prepared.buffer_bytes, scratch);
  return prepared;
}

// Nodes from this one on that belong to one action.
size_t Session::largest_group(const Program& program, size_t node) const {
  if (node < program.first_check) return 1;
  if (node < program.first_step) return program.first_step - node;
  size_t end = program.nodes.size();
  if (options_.replicated && !program.updates_whole()) {
    size_t next = program.first_step;
    for (const graph::Bucket& bucket : graph::gradient_buckets(program, options_.bucket_bytes)) {
      next += bucket.gradients.size();
      if (next > node) break;
    }
    if (next > node) end = std::min(end, next);
  }
  return end - node;
}

void Session::check_limit(const Prepared& prepared, const std::vector<size_t>& scratch) const {
  if (options_.memory_limit == 0) return;
  // What another micro-batch would take: all but what belongs to a parameter is proportional to it.
  auto layout_at = [&](int64_t batch, auto&& then) {
    std::vector<size_t> bytes = prepared.buffer_bytes;
    for (size_t id = 0; id < bytes.size(); ++id) {
      if (prepared.program.buffers[id].param != graph::kNone) continue;
      bytes[id] = bytes[id] * static_cast<size_t>(batch) / static_cast<size_t>(graph_.batch());
    }
    const memory::MemoryPlan memory = plan(prepared.program, bytes, scratch);
    return then(memory::StageLayout(options_.copies, {{prepared.program, bytes, memory}}));
  };
  auto total_at = [&](int64_t batch) {
    return options_.snapshot_bytes + layout_at(batch, [](const memory::StageLayout& layout) { return layout.bytes(); });
  };
  const size_t total = total_at(graph_.batch()) + options_.loader_bytes;
  if (total <= options_.memory_limit) return;

  constexpr double kMiB = 1 << 20;
  auto items = layout_at(graph_.batch(), [](const memory::StageLayout& layout) { return layout.items(); });
  items.push_back({"loading ahead", options_.loader_bytes});
  items.push_back({"snapshot", options_.snapshot_bytes});
  std::stable_sort(items.begin(), items.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  std::string sum;
  for (const memory::MemoryItem& item : items) {
    if (static_cast<double>(item.bytes) < 0.5 * kMiB) continue;
    sum += fmt::format("{}{} {:.0f}", sum.empty() ? "" : " + ", item.what, static_cast<double>(item.bytes) / kMiB);
  }
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
  const std::string what =
      options_.stage.first.size() == 1 ? graph_.name : fmt::format("stage {} of {}", options_.stage.index, graph_.name);
  fail_input("{} needs {:.0f} MiB ({} MiB), {} has {:.0f} MiB; {}", what, static_cast<double>(total) / kMiB, sum,
             options_.limit_reason, static_cast<double>(options_.memory_limit) / kMiB, advice);
}

void Session::allocate() {
  std::vector<memory::LaidOutProgram> programs{{train_.program, train_.buffer_bytes, train_.plan}};
  if (evaluate_) programs.push_back({evaluate_->program, evaluate_->buffer_bytes, evaluate_->plan});
  layout_ = std::make_unique<memory::StageLayout>(options_.copies, programs);
  memory_.items = layout_->items();
  memory_.arena_bytes = layout_->arena_bytes();
  memory_.arena_floor_bytes = train_.plan.floor_bytes;
  memory_.planned_bytes = layout_->bytes();
  memory_block_ = static_cast<std::byte*>(backend_.allocate(layout_->bytes()));
  metrics_ = static_cast<double*>(find(train_.program.metrics, {}));
}

void* Session::address(size_t program, BufferId id, const memory::Copy& copy) const {
  const size_t offset = layout_->offset(program, id, copy);
  return offset == memory::MemoryPlan::kNoOffset ? nullptr : memory_block_ + offset;
}

Wire Session::wire(Use use, BufferId id, const memory::Copy& copy) const {
  if (id == graph::kNone) return {};
  const Prepared& prepared = use == Use::Training ? train_ : *evaluate_;
  void* data = address(use == Use::Training ? 0 : 1, id, copy);
  return {static_cast<std::byte*>(data), prepared.buffer_bytes[id] / static_cast<size_t>(graph_.batch())};
}

void Session::bind(Prepared& prepared, size_t index) {
  const Program& program = prepared.program;
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    const graph::Node& node = program.nodes[i];
    memory::Copies counts{1, 1, 1};
    for (const auto& ids : {node.reads, node.writes}) {
      for (BufferId id : ids) {
        const BufferRole role = program.buffers[id].role;
        const memory::Home home = prepared.plan.buffer_home[id];
        if (role == BufferRole::Weight) counts.versions = options_.copies.versions;
        if (role == BufferRole::Input || home == memory::Home::Slot) counts.slots = options_.copies.slots;
        if (home == memory::Home::GradientSlot) counts.gradient_slots = options_.copies.gradient_slots;
      }
    }
    BoundNode bound;
    bound.first_task = prepared.tasks.size();
    bound.version_stride = counts.versions > 1 ? 1 : 0;
    bound.gradient_stride = counts.gradient_slots > 1 ? counts.versions : 0;
    bound.slot_stride = counts.slots > 1 ? counts.versions * counts.gradient_slots : 0;
    bound.updates = graph::is_step(node.kind);
    prepared.nodes.push_back(bound);
    if (!prepared.has_task(i)) continue;

    for (memory::Copy copy; copy.slot < counts.slots; ++copy.slot) {
      for (copy.gradient_slot = 0; copy.gradient_slot < counts.gradient_slots; ++copy.gradient_slot) {
        for (copy.version = 0; copy.version < counts.versions; ++copy.version) {
          backend::Bindings bindings;
          // An update writes the version after the one it reads.
          memory::Copy written = copy;
          if (bound.updates) written.version = (copy.version + 1) % options_.copies.versions;
          for (size_t with = i; with < i + prepared.together[i]; ++with) {
            for (BufferId id : program.nodes[with].reads) bindings.reads.push_back(address(index, id, copy));
            for (BufferId id : program.nodes[with].writes) bindings.writes.push_back(address(index, id, written));
          }
          bindings.scratch = memory_block_ + layout_->arena_offset() + prepared.plan.scratch_offset[i];
          prepared.tasks.push_back(prepared.kernels[i].bind(bindings));
        }
      }
    }
  }
}

void Session::bind_buckets() {
  statistics_ = {reinterpret_cast<float*>(memory_block_ + layout_->statistics_offset()),
                 layout_->statistics_bytes() / sizeof(float)};
  if (!options_.replicated) return;
  const Program& program = train_.program;
  size_t next_update = program.first_step;
  for (const graph::Bucket& bucket : graph::gradient_buckets(program, options_.bucket_bytes)) {
    BoundBucket bound;
    bound.end = bucket.end;
    bound.first_update = next_update;
    bound.last_update = next_update += bucket.gradients.size();
    // Its memory begins with its first gradient and ends where the next bucket's begins.
    bound.memory = {static_cast<float*>(address(0, bucket.gradients[0], {})), 0};
    buckets_.push_back(bound);
  }
  for (size_t i = 0; i < buckets_.size(); ++i) {
    float* begin = buckets_[i].memory.data();
    float* end = i + 1 < buckets_.size() ? buckets_[i + 1].memory.data() : statistics_.data() + statistics_.size();
    buckets_[i].memory = {begin, end};
  }
}

void Session::find_stretches() {
  const Program& program = train_.program;
  auto ends_bucket = [&](size_t node) {
    return std::any_of(buckets_.begin(), buckets_.end(), [&](const BoundBucket& bucket) { return bucket.end == node; });
  };
  for (size_t i = program.first_backward; i < program.first_update; ++i) {
    const graph::Pass pass = program.nodes[i].pass;
    if (stretches_.empty() || stretches_.back().pass != pass || ends_bucket(i)) stretches_.push_back({i, i, pass});
    stretches_.back().end = i + 1;
  }
}

void Session::put_input(int slot, const void* features, const int32_t* labels) {
  const Program& program = train_.program;
  if (program.features != graph::kNone && features) {
    backend_.put_input(graph_, program, program.features, features, find(program.features, {slot, 0, 0}));
  }
  if (program.labels != graph::kNone) {
    backend_.put_input(graph_, program, program.labels, labels, find(program.labels, {slot, 0, 0}));
  }
}

std::span<float> Session::agreement() const {
  const auto all = static_cast<size_t>(train_.program.buffers[train_.program.agreement].shape[0]);
  return {static_cast<float*>(address(0, train_.program.agreement, {})) + graph::kOverflow, all - graph::kOverflow};
}

std::span<float> Session::tied_gradient(graph::ParamId param) const {
  for (const BufferId id : train_.program.tied) {
    if (train_.program.buffers[id].param != param) continue;
    return {static_cast<float*>(address(0, id, {})), train_.buffer_bytes[id] / sizeof(float)};
  }
  fail_run("stage {} shares no {}", options_.stage.index, graph_.params[param].name);
}

std::vector<float> Session::read_buffer(BufferId id) const {
  std::vector<float> plain(static_cast<size_t>(train_.program.buffers[id].shape.elements()));
  backend_.download(graph_, train_.program, id, address(0, id, {0, 0, ring(updates_)}), plain);
  return plain;
}

const backend::Task& Session::task(const Prepared& prepared, size_t i, const Place& place) const {
  const BoundNode& node = prepared.nodes[i];
  const int version = ring(node.updates ? place.update : place.version);
  return prepared.tasks[node.first_task +
                        static_cast<size_t>(node.slot_stride * place.slot + node.gradient_stride * place.gradient_slot +
                                            node.version_stride * version)];
}

void Session::run(const Prepared& prepared, size_t begin, size_t end, const Place& place, const StepContext& given) {
  if (begin == end) return;
  // Kernels spill vectors to the stack: where a caller's frame happened to leave it across cache lines, a forward pass
  // took a tenth longer.
  alignas(64) StepContext context = given;
  context.update = updates_before_ + place.update;  // steps may come with the backward pass, or after it
  backend_.begin(context);
  if (timing_) return run_timed(prepared, begin, end, place, context);
  if (backend_.records()) return run_recorded(prepared, begin, end, place, context);
  for (size_t i = begin; i < end; ++i) {
    if (prepared.has_task(i)) task(prepared, i, place)(context);
  }
}

void Session::run_timed(const Prepared& prepared, size_t begin, size_t end, const Place& place,
                        const StepContext& context) {
  constexpr size_t kFirst = 16384;  // a worker has marks of its own before
  for (size_t i = begin; i < end; ++i) {
    backend_.mark(kFirst + i - begin);
    if (prepared.has_task(i)) task(prepared, i, place)(context);
  }
  backend_.mark(kFirst + end - begin);
  backend_.wait();
  for (size_t i = begin; i < end; ++i) {
    // Nodes that are done together share their time by their size.
    const double seconds = backend_.seconds_between(kFirst + i - begin, kFirst + i - begin + 1);
    double elements = 0;
    const size_t count = prepared.together[i];
    for (size_t with = i; with < i + count; ++with) elements += size_of(prepared.program, with);
    for (size_t with = i; with < i + count; ++with) {
      node_times_[with].seconds += seconds * size_of(prepared.program, with) / elements;
    }
  }
}

std::shared_ptr<const void> Session::record(const std::function<void()>& run_tasks) {
  backend_.begin_recording();
  try {
    run_tasks();
  } catch (const std::exception&) {
    if (backend_.end_recording()) throw;  // otherwise it failed because the recording was disturbed
    return nullptr;
  }
  return backend_.end_recording();
}

void Session::run_recorded(const Prepared& prepared, size_t begin, size_t end, const Place& place,
                           const StepContext& context) {
  auto run_tasks = [&] {
    for (size_t i = begin; i < end; ++i) {
      if (prepared.has_task(i)) task(prepared, i, place)(context);
    }
  };
  const int version = ring(place.version), updated = ring(place.update);
  for (Recording& known : recordings_) {
    if (known.prepared != &prepared || known.begin != begin || known.end != end || known.slot != place.slot ||
        known.gradient_slot != place.gradient_slot || known.version != version || known.updated != updated) {
      continue;
    }
    if (!known.tasks) known.tasks = record(run_tasks);
    if (!known.tasks) return run_tasks();  // and the next time is as good
    return backend_.play(known.tasks.get());
  }
  run_tasks();
  recordings_.push_back({&prepared, begin, end, place.slot, place.gradient_slot, version, updated, nullptr});
}

void Session::forward(const Place& place, const StepContext& context) {
  run(train_, 0, train_.program.first_backward, place, context);
}

void Session::put_prefix(const graph::PrefixEnd& end, int slot, const std::byte* rows) {
  backend_.put(address(0, end.output, {slot, 0, 0}), rows, train_.buffer_bytes[end.output]);
}

void Session::take_prefix(const graph::PrefixEnd& end, int slot, std::byte* rows) const {
  backend_.wait();
  backend_.copy(rows, address(0, end.output, {slot, 0, 0}), train_.buffer_bytes[end.output]);
}

void Session::sum_gradients(const StepContext& context) {
  run(train_, train_.program.first_update, train_.program.first_check, {}, context);
}

void Session::check_gradients(const StepContext& context) {
  run(train_, train_.program.first_check, train_.program.first_step, {}, context);
}

void Session::update(int bucket, int64_t update, const StepContext& context) {
  const Place place{0, 0, update, update};
  if (bucket == kWhole) {
    run(train_, train_.program.first_step, train_.program.nodes.size(), place, context);
  } else {
    run(train_, buckets_[bucket].first_update, buckets_[bucket].last_update, place, context);
  }
  if (bucket == kWhole || bucket + 1 == static_cast<int>(buckets_.size())) updates_ = update + 1;
}

void Session::evaluate(int slot, int64_t rows) {
  StepContext context;
  context.seed = options_.seed;
  context.rows = rows;
  const bool timed = std::exchange(timing_, false);  // its nodes are not those of training
  run(*evaluate_, 0, evaluate_->program.nodes.size(), {slot, 0, updates_, 0}, context);
  timing_ = timed;
}

void Session::read_logits(int slot, std::vector<float>& logits) const {
  const Program& program = evaluate_->program;
  logits.resize(static_cast<size_t>(program.buffers[program.logits].shape.elements()));
  backend_.download(graph_, program, program.logits, address(1, program.logits, {slot, 0, 0}), logits);
}

Metrics Session::take_metrics() {
  send_metrics(0);
  backend_.wait();
  return landed_metrics(0);
}

void Session::send_metrics(size_t place) {
  if (metrics_) backend_.take(landed_[place].data(), metrics_, sizeof landed_[place]);
}

Metrics Session::landed_metrics(size_t place) const {
  const auto& values = landed_[place];
  return {values[graph::kLossSum], values[graph::kTop1], values[graph::kTop5], values[graph::kRows], {}};
}

Metrics Session::train_step(int64_t step, int64_t samples, double learning_rate,
                            const std::function<int64_t(int)>& fill) {
  StepContext context;
  context.seed = options_.seed;
  context.step = step;
  context.inverse_samples = 1.0 / static_cast<double>(samples);
  context.learning_rate = static_cast<float>(learning_rate);
  const Place place{0, 0, updates_, updates_};
  for (int m = 0; m < options_.microbatches; ++m) {
    context.first_row = m * graph_.batch();
    context.rows = fill(m);
    if (context.rows == 0) continue;
    forward(place, context);
    backward(kWhole, place, context);
  }
  sum_gradients(context);
  check_gradients(context);
  update(kWhole, updates_, context);
  return take_metrics();
}

Metrics Session::evaluate(int64_t rows) {
  evaluate(0, rows);
  return take_metrics();
}

void Session::time_nodes(bool on) {
  timing_ = on;
  for (NodeTime& time : node_times_) time.seconds = 0;
}

}  // namespace millrace::runtime
