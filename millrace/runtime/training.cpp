#include "millrace/runtime/training.h"

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "millrace/backend/cuda/cuda_backend.h"
#include "millrace/base/error.h"
#include "millrace/job/lr_schedule.h"
#include "millrace/job/stage_file.h"
#include "millrace/model/model.h"
#include "millrace/runtime/op_times.h"
#include "millrace/schedule/prover.h"
#include "millrace/schedule/steady.h"
#include "millrace/state/params_file.h"

namespace millrace::runtime {
namespace {

using schedule::Pipeline;

// Minibatches that an asynchronous mode runs before it drains: long enough that draining costs nothing, short enough
// that the lists stay small.
constexpr int64_t kLongestSegment = 1024;

// Minibatches after which every stage has finished whole updates.
int64_t updates_align(const Pipeline& pipeline) {
  int64_t all = 1;
  if (pipeline.synchronous() || pipeline.replicas == job::Replicas::Split) return all;
  for (const auto& workers : pipeline.stages) all = std::lcm(all, static_cast<int64_t>(workers.size()));
  return all;
}

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// On the way to process 0.
std::array<double, 8> to_values(const Metrics& m) {
  const auto& [first, second, third, fourth] = m.figures;
  return {m.loss_sum, m.top1, m.top5, m.rows, first, second, third, fourth};
}
Metrics from_values(const std::array<double, 8>& v) { return {v[0], v[1], v[2], v[3], {v[4], v[5], v[6], v[7]}}; }

}  // namespace

Training::Training(const job::Job& job, comm::Process& process, const MachineLimit& limit, const OnMeasure& on_measure)
    : process_(process) {
  facts_.job = job;
  graph_ = model::training_graph(job, job.batch / job.parallel.microbatches);
  if (!job.model.init.empty()) state::check_params(job.model.init, graph_);  // before kernels are measured
  open_data();
  std::vector<double> op_seconds;
  if (plan::needs_op_seconds(job.parallel)) {
    op_seconds = measure_op_seconds_together(process, job, thread_count(job, workers_on_host()), limit, on_measure);
  }
  facts_.plan = plan::make_plan(job, graph_, process.size(), op_seconds);
  const int workers = facts_.plan.pipeline.num_workers;
  if (process.size() != 1 && process.size() != workers) {
    fail_input("parallel.placement names {} devices and {} processes were started; start {} (mpirun -n {}) or one",
               workers, process.size(), workers, workers);
  }
  make_schedules();
  make_workers(limit, on_measure);
  load_parameters();
}

Training::~Training() {
  process_.show({});  // the workers it would ask end here
  // After a failure messages are still under way, and other processes' hands in this one's memory until it ends.
  if (std::uncaught_exceptions() == 0 || process_.size() == 1) return;
  for (LocalWorker& local : workers_) {
    if (local.worker) local.worker->abandon_memory();
  }
}

void Training::open_data() {
  const job::Job& job = facts_.job;
  facts_.train_data = data::make_dataset(job, data::Split::Train);
  if (job.data.has_test()) {
    facts_.test_data = data::make_dataset(job, data::Split::Test);
    facts_.scorer = facts_.test_data->scorer();
  }
  const int64_t batches = (facts_.train_data->size() + job.batch - 1) / job.batch;
  facts_.steps_per_epoch = static_cast<double>(batches);
  facts_.total_steps =
      job.steps > 0 ? job.steps : static_cast<int64_t>(std::ceil(job.epochs * facts_.steps_per_epoch - 1e-9));
}

// Before there is a plan: devices that the job names.
int Training::workers_on_host() const {
  if (process_.size() > 1) return process_.size_on_host();
  std::set<job::DeviceId> devices;
  for (const auto& stage : job::placed_stages(facts_.job.parallel)) devices.insert(stage.begin(), stage.end());
  return std::max<int>(1, static_cast<int>(devices.size()));
}

void Training::make_schedules() {
  const Pipeline& pipeline = facts_.plan.pipeline;
  facts_.shape = steady_lists(pipeline);
  wiring_ =
      std::make_unique<Wiring>(facts_.plan, *std::max_element(facts_.shape.slots.begin(), facts_.shape.slots.end()));
  if (!facts_.test_data) return;
  const int64_t parts = (facts_.test_data->size() + pipeline.rows - 1) / pipeline.rows;
  schedule::Schedule evaluation = evaluation_schedule(pipeline, static_cast<int>(parts));
  evaluation.slots = facts_.shape.slots;
  evaluation.gradient_slots = facts_.shape.gradient_slots;
  evaluation_ = std::make_unique<schedule::Schedule>(lower(std::move(evaluation)));
  prove(*evaluation_);
}

void Training::make_workers(const MachineLimit& limit, const OnMeasure& on_measure) {
  const Pipeline& pipeline = facts_.plan.pipeline;
  comm::Topology topology;
  topology.num_workers = pipeline.num_workers;
  topology.num_tags = wiring_->num_tags();
  for (int s = 0; s < pipeline.num_stages(); ++s) {
    topology.groups.push_back({pipeline.stages[s], pipeline.num_replicas(s) > 1 ? pipeline.buckets[s] : 0});
  }
  // In the order of plan::Plan's groups.
  comm::Group all;
  for (int w = 0; w < pipeline.num_workers; ++w) all.workers.push_back(w);
  all.buckets = pipeline.agrees_on_steps ? 1 : 0;
  topology.groups.push_back(all);
  for (const plan::Tie& tie : facts_.plan.ties) topology.groups.push_back({facts_.plan.workers_of(tie), 1});
  topology.groups.push_back({pipeline.stages[facts_.loss_stage()], facts_.scorer ? 1 : 0});
  process_.open(topology);

  const bool all_here = process_.size() == 1;
  const int on_host = all_here ? pipeline.num_workers : process_.size_on_host();
  threads_ = thread_count(facts_.job, on_host);
  if (facts_.job.data.threads == 0) facts_.job.data.threads = loader_threads(facts_.job, on_host);
  workers_.resize(all_here ? pipeline.num_workers : 1);
  for (size_t i = 0; i < workers_.size(); ++i) {
    LocalWorker& local = workers_[i];
    const int index = all_here ? static_cast<int>(i) : process_.rank();
    local.thread = std::make_unique<WorkerThread>();
    // One after another: measuring kernels wants a quiet machine.
    local.thread
        ->call([&] {
          local.backend = make_backend(facts_.job, threads_, on_measure, facts_.plan.devices[index].device);
          local.endpoint = process_.connect(index, *local.backend);
          local.worker =
              std::make_unique<Worker>(facts_, *wiring_, index, *local.endpoint, *local.backend,
                                       limit.memory_bytes / static_cast<size_t>(sharers(index, on_host)), limit.source);
        })
        .get();
  }
}

// Workers whose memory is this one's: those of the host, or of the GPU.
int Training::sharers(int worker, int on_host) const {
  if (facts_.job.device != job::Device::Cuda) return on_host;
  const int gpus = std::max(1, backend::cuda_device_count());
  const std::vector<job::DeviceId>& devices = facts_.plan.devices;
  return static_cast<int>(std::count_if(devices.begin(), devices.end(), [&](const job::DeviceId& other) {
    return other.node == devices[worker].node && other.device % gpus == devices[worker].device % gpus;
  }));
}

void Training::on_all_workers(const std::function<void(LocalWorker&)>& work) {
  std::vector<std::future<void>> calls;
  for (LocalWorker& local : workers_) calls.push_back(local.thread->call([&] { work(local); }));
  for (std::future<void>& call : calls) call.wait();
  for (std::future<void>& call : calls) call.get();
}

void Training::load_parameters() {
  {
    state::State state = state::initial_state(graph_, facts_.job.seed);
    if (!facts_.job.model.init.empty()) init_notes_ = state::load_params(facts_.job.model.init, graph_, state);
    on_all_workers([&](LocalWorker& local) { local.worker->load(state); });
  }
  malloc_trim(0);  // the host copy goes back to the system, or it would stay on top of what was planned
}

size_t Training::planned_bytes() const {
  size_t bytes = 0;
  for (const LocalWorker& local : workers_) bytes += local.worker->planned_bytes();
  return bytes;
}

bool Training::remakes_blocks() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const LocalWorker& local) {
    for (size_t i = 0; i < local.worker->num_sessions(); ++i) {
      if (local.worker->session(i).remakes_blocks()) return true;
    }
    return false;
  });
}

double Training::step_flops() const {
  const graph::Program program = graph::training_program(graph_, {});
  double flops = 0;
  for (const graph::Node& node : program.nodes) {
    const graph::Op& op = graph_.ops[node.op];
    if (node.kind == op.kind) flops += graph::forward_flops(graph_, op);
  }
  return flops * facts_.job.parallel.microbatches;
}

std::vector<Training::Segment> Training::segments() const {
  const Pipeline& pipeline = facts_.plan.pipeline;
  const int64_t align = updates_align(pipeline);
  const int64_t longest = round_up(kLongestSegment, align);
  int64_t evaluate_every = 0;  // steps; 0: only at the end
  if (facts_.job.eval.every_epochs > 0) {
    evaluate_every = std::max<int64_t>(1, std::llround(facts_.job.eval.every_epochs * facts_.steps_per_epoch));
  }
  std::vector<Segment> segments;
  int64_t next_evaluation = evaluate_every;
  for (int64_t first = 0; first < facts_.total_steps;) {
    int64_t last = std::min(first + longest, facts_.total_steps);
    if (facts_.test_data && evaluate_every > 0) last = std::min(last, round_up(next_evaluation, align));
    last = std::min(last, facts_.total_steps);
    const bool due = evaluate_every > 0 && last >= next_evaluation;
    while (evaluate_every > 0 && next_evaluation <= last) next_evaluation += evaluate_every;
    segments.push_back({first, last - first, facts_.test_data && (due || last == facts_.total_steps)});
    first = last;
  }
  return segments;
}

const schedule::Schedule& Training::schedule_for(int64_t steps) {
  const Pipeline& pipeline = facts_.plan.pipeline;
  const int count = static_cast<int>(pipeline.synchronous() ? 1 : steps);
  for (const auto& schedule : schedules_) {
    if (schedule->microbatches == (pipeline.synchronous() ? pipeline.microbatches : count)) return *schedule;
  }
  schedule::Schedule compute = compute_schedule(pipeline, count);
  compute.slots = facts_.shape.slots;
  compute.gradient_slots = facts_.shape.gradient_slots;
  auto& added = schedules_.emplace_back(std::make_unique<schedule::Schedule>(lower(std::move(compute))));
  prove(*added);
  return *added;
}

void Training::run_worker(Worker& worker, const std::vector<Segment>& segments, const Observer& observer) {
  WorkerEvents events;
  events.on_step = [&](int64_t step, const Metrics& metrics, std::span<const int64_t> samples) {
    process_.tell({step, worker.index(), false, to_values(metrics)});
    if (observer.on_samples) observer.on_samples(step, samples);
  };
  const bool has_loss = worker.stage(worker.num_sessions() - 1) == facts_.loss_stage();
  const bool synchronous = facts_.plan.pipeline.synchronous();
  for (size_t i = 0; i < segments.size(); ++i) {
    const Segment& segment = segments[i];
    const schedule::Schedule& list = schedule_for(segment.steps);
    if (synchronous) {
      for (int64_t step = segment.first; step < segment.first + segment.steps; ++step) worker.train(list, step, events);
    } else {
      worker.train(list, segment.first, events);
    }
    if (!segment.evaluates) continue;
    const Metrics metrics = worker.evaluate(*evaluation_);
    const auto number = static_cast<int64_t>(i);
    if (has_loss) process_.tell({number, worker.index(), true, to_values(metrics)});
  }
}

// Puts together what the replicas of the loss tell, in order, and passes it on.
void Training::watch(const Observer& observer, std::chrono::steady_clock::time_point began, TrainingResult& result) {
  const Pipeline& pipeline = facts_.plan.pipeline;
  const int replicas = pipeline.num_replicas(facts_.loss_stage());
  const bool in_turn = !pipeline.synchronous() && pipeline.replicas == job::Replicas::RoundRobin;
  const int step_parts = in_turn ? 1 : replicas;
  const auto epoch_steps = static_cast<int64_t>(facts_.steps_per_epoch);
  const std::vector<Segment> all = segments();

  // Parts come in any order and are added in the order of the workers.
  std::map<std::pair<bool, int64_t>, std::map<int, Metrics>> gathered;
  // When the last part of each was told, and of the one that was last awaited: by the clock of those who tell, so that
  // a slow watcher does not show.
  std::map<std::pair<bool, int64_t>, std::chrono::steady_clock::time_point> told;
  auto latest = began;
  auto await = [&](bool evaluation, int64_t number, int parts) {
    auto& wanted = gathered[{evaluation, number}];
    while (static_cast<int>(wanted.size()) < parts) {
      const auto event = process_.next_event(std::chrono::milliseconds(200));
      if (!event) continue;
      gathered[{event->is_evaluation, event->number}][event->part] = from_values(event->values);
      told[{event->is_evaluation, event->number}] = event->at;
    }
    Metrics total;
    for (const auto& [part, metrics] : wanted) total += metrics;
    gathered.erase({evaluation, number});
    latest = told[{evaluation, number}];
    told.erase({evaluation, number});
    return total;
  };

  Metrics stretch;
  auto since = began;
  for (size_t i = 0; i < all.size(); ++i) {
    for (int64_t step = all[i].first; step < all[i].first + all[i].steps; ++step) {
      const Metrics metrics = await(false, step, step_parts);
      const double seconds = std::chrono::duration<double>(latest - since).count();
      since = latest;
      result.steps = step + 1;
      const int64_t samples = static_cast<int64_t>(metrics.rows) / facts_.train_data->label_elements();
      result.samples += samples;
      result.train_s += seconds;
      if (step % epoch_steps == 0) stretch = {};
      stretch += metrics;
      result.last = stretch;
      const double lr = job::learning_rate(facts_.job.optimizer, facts_.job.schedule, step, facts_.steps_per_epoch,
                                           facts_.total_steps);
      observer.on_step({step, static_cast<double>(step + 1) / facts_.steps_per_epoch, seconds, lr, samples, metrics});
      if (observer.stop_if_diverged && !std::isfinite(metrics.loss())) {
        result.diverged = true;
        result.last = metrics;
        return;
      }
    }
    if (!all[i].evaluates) continue;
    result.evaluation = await(true, static_cast<int64_t>(i), replicas);
    since = latest;
    observer.on_evaluation(static_cast<double>(result.steps) / facts_.steps_per_epoch, *result.evaluation);
  }
}

TrainingResult Training::run(const Observer& observer) {
  TrainingResult result;
  const std::vector<Segment> all = segments();
  for (const Segment& segment : all) schedule_for(segment.steps);

  const auto began = std::chrono::steady_clock::now();  // before anyone can tell of a step
  std::vector<std::future<void>> calls;
  for (LocalWorker& local : workers_) {
    calls.push_back(local.thread->call([&] {
      try {
        run_worker(*local.worker, all, observer);
      } catch (...) {
        process_.abort();
        throw;
      }
    }));
  }
  if (process_.size() > 1) {
    process_.show([worker = workers_[0].worker.get()] { return worker->doing(); });
  }
  std::exception_ptr failure;
  auto keep_first = [&] {
    try {
      throw;
    } catch (const comm::Aborted&) {
      if (!failure) failure = std::current_exception();
    } catch (...) {
      failure = std::current_exception();
    }
  };
  if (process_.rank() == 0) {
    try {
      watch(observer, began, result);
      if (result.diverged) process_.abort();
    } catch (...) {
      process_.abort();
      keep_first();
    }
  }
  for (std::future<void>& call : calls) {
    try {
      call.get();
    } catch (...) {
      keep_first();
    }
  }
  if (failure && !result.diverged) std::rethrow_exception(failure);
  for (const LocalWorker& local : workers_) result.data_wait_s += local.worker->data_wait_s();
  return result;
}

state::State Training::state() {
  state::State state;
  std::mutex mutex;
  on_all_workers([&](LocalWorker& local) {
    state::State own;
    local.worker->store(own);
    const std::lock_guard lock(mutex);
    state.params.merge(own.params);
    state.velocity.merge(own.velocity);
    state.second_moment.merge(own.second_moment);
    if (state.loss_scale.empty()) state.loss_scale = own.loss_scale;
  });
  if (process_.size() == 1) return state;
  state::State all;
  for (const std::string& bytes : process_.gather(state::to_bytes(state))) {
    state::State part = state::state_from_bytes(bytes);
    all.params.merge(part.params);
    all.velocity.merge(part.velocity);
    all.second_moment.merge(part.second_moment);
    if (all.loss_scale.empty()) all.loss_scale = part.loss_scale;
  }
  return all;
}

data::Skipped Training::skipped() const {
  data::Skipped all;
  for (const data::Dataset* dataset : {facts_.train_data.get(), facts_.test_data.get()}) {
    const data::SkipLog* log = dataset ? dataset->skipped() : nullptr;
    if (!log) continue;
    const data::Skipped one = log->skipped();
    all.left_out += one.left_out;
    all.while_reading += one.while_reading;
    all.reasons.insert(all.reasons.end(), one.reasons.begin(), one.reasons.end());
  }
  return all;
}

std::vector<WorkerRecord> Training::records() {
  std::vector<WorkerRecord> records;
  for (const LocalWorker& local : workers_) records.push_back(local.worker->record());
  records[0].skipped = skipped();
  if (process_.size() == 1) return records;
  const std::string own = to_text(records[0]);
  records.clear();
  for (const std::string& text : process_.gather(own)) {
    records.push_back(record_from_text(text));
  }
  return records;
}

}  // namespace millrace::runtime
