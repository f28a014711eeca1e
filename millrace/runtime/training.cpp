#include "millrace/runtime/training.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <fstream>
#include <set>
#include <utility>

#include "millrace/backend/cuda/cuda_backend.h"
#include "millrace/base/error.h"
#include "millrace/comm/first_of_all.h"
#include "millrace/job/reader.h"
#include "millrace/job/stage_file.h"
#include "millrace/model/model.h"
#include "millrace/runtime/conductor.h"
#include "millrace/runtime/op_times.h"
#include "millrace/schedule/prover.h"
#include "millrace/schedule/steady.h"
#include "millrace/state/checkpoint_store.h"
#include "millrace/state/params_file.h"

namespace millrace::runtime {
using schedule::Pipeline;

Training::Training(const job::Job& job, comm::Process& process, const MachineLimit& limit, const OnMeasure& on_measure,
                   const StateReader& reader, Parameters when, std::shared_ptr<const PrefixCache> prefix_cache)
    : process_(process) {
  facts_.prefix_cache = std::move(prefix_cache);
  try {
    make(job, limit, on_measure);
  } catch (...) {
    // Others that have not failed wait for all GPUs to be there.
    if (!connects_ && job.device == job::Device::Cuda && job.parallel.nccl) process_.decline_to_join();
    throw;
  }
  if (when == Parameters::Now) {
    load_parameters(reader);
    return;
  }
  on_all_workers([](LocalWorker& local) {
    for (size_t i = 0; i < local.worker->num_sessions(); ++i) local.worker->session(i).touch();
  });
}

void Training::make(const job::Job& job, const MachineLimit& limit, const OnMeasure& on_measure) {
  facts_.job = job;
  facts_.job_text = job::to_yaml(job);
  graph_ = model::training_graph(job, job.batch / job.parallel.microbatches);
  facts_.layers = graph::num_layers(graph_);
  if (!job.model.init.empty()) state::check_params(job.model.init, graph_);  // before kernels are measured
  open_data();
  std::vector<double> op_seconds;
  if (plan::needs_op_seconds(job.parallel)) {
    op_seconds = measure_op_seconds_together(process_, job, thread_count(job, workers_on_host()), limit, on_measure);
  }
  facts_.plan = plan::make_plan(job, graph_, process_.size(), op_seconds);
  const int workers = facts_.plan.pipeline.num_workers;
  if (process_.size() != 1 && process_.size() != workers) {
    fail_input("parallel.placement names {} devices and {} processes were started; start {} (mpirun -n {}) or one",
               workers, process_.size(), workers, workers);
  }
  make_schedules();
  process_.set_silence(job.parallel.silence_s);
  make_workers(limit, on_measure);
}

int64_t Training::take_over(Training& before) {
  const bool alone = process_.size() == 1;
  // Tasks of a device belong to its worker's thread, and older versions to the state.
  if (!before.workers_[0].backend->on_host() || !before.plan().pipeline.synchronous()) {
    state::State state = alone ? before.state() : before.own_state();
    state.since = before.since_for(facts_.job.batch);
    if (!alone) return take_over(std::move(state));
    load_parameters([&](const Session::Wanted&) { return std::move(state); });
    return 0;
  }
  std::vector<const Session*> sessions;
  StateEnd end;
  state::State position;
  for (const LocalWorker& local : before.workers_) {
    for (size_t i = 0; i < local.worker->num_sessions(); ++i) {
      if (alone && local.worker->replica(i) > 0) continue;
      const Session& session = std::as_const(*local.worker).session(i);
      sessions.push_back(&session);
      session.list(end.has);
      session.store_position(position);
    }
  }
  position.step = before.end_.step;
  position.samples = before.end_.samples;
  position.since = before.since_for(facts_.job.batch);
  state::Names come;
  int64_t moved_bytes = 0;
  if (!alone) {
    Exchanged exchanged = exchange_with(sessions, std::move(end), position, come);
    position = std::move(exchanged.rest);
    moved_bytes = exchanged.moved_bytes;
  }
  set_calendar(position.since);
  facts_.first_step = position.step;
  facts_.first_samples = position.samples;
  on_all_workers([&](LocalWorker& local) { local.worker->load_from(sessions, position, come); });
  return moved_bytes;
}

// What other processes have. A tensor at a time lies in between.
Exchanged Training::exchange_with(const std::vector<const Session*>& sessions, StateEnd end,
                                  const state::State& position, state::Names& come) {
  std::vector<float> plain;
  const auto any_own = [&](const auto& holds) {
    bool any = false;
    for (size_t i = 0; i < worker(0).num_sessions(); ++i) any |= holds(worker(0).session(i));
    return any;
  };
  end.wants = [&](size_t kind, const std::string& name) {
    return any_own([&](Session& session) { return session.wants(kind, name); });
  };
  end.read = [&](size_t kind, const std::string& name) {
    for (const Session* session : sessions) {
      if (session->read(kind, name, plain)) break;
    }
    return std::span<const float>(plain);
  };
  end.room = [&](size_t kind, const std::string& name, const Shape& shape) {
    come[kind][name] = shape;
    plain.resize(static_cast<size_t>(shape.elements()));
    return std::span<float>(plain);
  };
  end.come = [&](size_t kind, const std::string& name) {
    any_own([&](Session& session) {
      session.put(kind, name, plain);
      return true;
    });
  };
  Exchanged exchanged;
  on_all_workers([&](LocalWorker&) { exchanged = exchange_state(process_, end, position); });
  return exchanged;
}

int64_t Training::take_over(state::State own) {
  int64_t moved_bytes = 0;
  load_parameters([&](const Session::Wanted& wanted) {
    ExchangedState exchanged = exchange_state(process_, std::move(own), wanted);
    moved_bytes = exchanged.moved_bytes;
    return std::move(exchanged.state);
  });
  return moved_bytes;
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
  set_calendar({});
}

void Training::set_calendar(const job::SizedSince& since) {
  const job::Job& job = facts_.job;
  facts_.calendar = {(facts_.train_data->size() + job.batch - 1) / job.batch, since};
  const double steps = job.epochs * static_cast<double>(facts_.calendar.steps_per_epoch);
  facts_.total_steps =
      job.steps > 0 ? job.steps : facts_.calendar.step_of_even(static_cast<int64_t>(std::ceil(steps - 1e-9)));
}

job::SizedSince Training::since_for(int64_t batch) const {
  if (batch == facts_.job.batch) return facts_.calendar.since;
  return {end_.step, static_cast<int64_t>(facts_.calendar.epoch_at(end_.step))};
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
  topology.pairs = wiring_->pairs();
  topology.joins_devices = facts_.job.parallel.nccl;
  for (int s = 0; s < pipeline.num_stages(); ++s) {
    topology.groups.push_back({pipeline.stages[s], pipeline.num_replicas(s) > 1 ? pipeline.buckets[s] : 0});
  }
  // In the order of plan::Plan's groups.
  comm::Group all;
  for (int w = 0; w < pipeline.num_workers; ++w) {
    const bool learns = std::any_of(pipeline.stages.begin() + pipeline.frozen, pipeline.stages.end(),
                                    [&](const auto& s) { return std::find(s.begin(), s.end(), w) != s.end(); });
    if (learns) all.workers.push_back(w);
  }
  all.buckets = pipeline.agrees_on_steps ? 1 : 0;
  topology.groups.push_back(all);
  for (const plan::Tie& tie : facts_.plan.ties) topology.groups.push_back({facts_.plan.workers_of(tie), 1});
  topology.groups.push_back({pipeline.stages[facts_.loss_stage()], facts_.scorer ? 1 : 0, true});
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
          connects_ = true;
          local.endpoint = process_.connect(index, *local.backend);
          size_t memory = limit.memory_bytes / static_cast<size_t>(sharers(index, on_host));
          if (memory > 0) memory -= std::min(memory - 1, static_cast<size_t>(local.endpoint->device_bytes()));
          local.worker =
              std::make_unique<Worker>(facts_, *wiring_, index, *local.endpoint, *local.backend, memory, limit.source);
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

void Training::load_parameters(const StateReader& reader) {
  {
    const Session::Wanted wanted = [&](const std::string& name) {
      return std::any_of(workers_.begin(), workers_.end(),
                         [&](const LocalWorker& local) { return local.worker->has_param(name); });
    };
    state::State state = reader ? reader(wanted) : state::initial_state(graph_, facts_.job.seed);
    if (!reader && !facts_.job.model.init.empty()) {
      init_notes_ = state::load_params(facts_.job.model.init, graph_, state);
    }
    set_calendar(state.since);
    facts_.first_step = state.step;
    facts_.first_samples = state.samples;
    facts_.evaluation_due = state.evaluation_due && facts_.test_data;
    on_all_workers([&](LocalWorker& local) { local.worker->load(state); });
  }
  malloc_trim(0);  // the host copy goes back to the system, or it would stay on top of what was planned
}

size_t Training::planned_bytes() const {
  size_t bytes = 0;
  for (const LocalWorker& local : workers_) {
    bytes += local.worker->planned_bytes() + static_cast<size_t>(local.endpoint->device_bytes());
  }
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

const schedule::Schedule& Training::schedule_for(int64_t steps) {
  const std::lock_guard lock(schedules_mutex_);
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

void Training::train(Worker& worker, const comm::Order& order, size_t number, const Observer& observer) {
  WorkerEvents events;
  events.on_step = [&](int64_t step, const Metrics& metrics, std::span<const int64_t> samples) {
    process_.tell({step, worker.index(), comm::Event::Kind::Step, to_values(metrics), {}, {}});
    if (observer.on_samples) observer.on_samples(step, samples);
  };
  const Worker::Limit limit = [&](int64_t known) {
    comm::OrderBook::Limit found;
    if (!process_.orders().await_limit(number, known, found)) throw comm::Aborted();
    return found;
  };
  const Pipeline& pipeline = facts_.plan.pipeline;
  if (!pipeline.synchronous()) {
    const int64_t steps = std::min(longest_list(pipeline), facts_.total_steps - order.at);
    worker.train(schedule_for(steps), order.at, events, limit);
    return worker.finish_storing();
  }
  const schedule::Schedule& list = schedule_for(1);
  comm::OrderBook::Limit allowed{order.at, false};
  for (int64_t step = order.at;; ++step) {
    if (step >= allowed.step) worker.settle();  // what may follow can depend on what is told of the last step
    while (step >= allowed.step && !allowed.is_end) allowed = limit(allowed.step);
    if (step >= allowed.step) return worker.finish_storing();
    worker.train(list, step, events);
  }
}

void Training::tell_squares(Worker& worker, int64_t step) {
  const std::vector<double> squares = worker.take_layer_squares();
  if (worker.index() != facts_.plan.pipeline.stages[facts_.loss_stage()].front()) return;
  for (size_t begin = 0; begin < squares.size(); begin += kValuesOfEvent) {
    comm::Event event{step, static_cast<int>(begin / kValuesOfEvent), comm::Event::Kind::Watched, {}, {}, {}};
    std::copy_n(squares.begin() + static_cast<std::ptrdiff_t>(begin), std::min(kValuesOfEvent, squares.size() - begin),
                event.values.begin());
    process_.tell(event);
  }
}

size_t Training::follow_orders(Worker& worker, const Observer& observer) {
  const bool has_loss = worker.stage(worker.num_sessions() - 1) == facts_.loss_stage();
  const state::CheckpointStore store(checkpoints_);
  for (size_t number = process_.orders().first();; ++number) {
    const std::optional<comm::Order> order = process_.orders().await_order(number);
    if (!order) throw comm::Aborted();
    switch (order->kind) {
      case comm::Order::Kind::Train: train(worker, *order, number, observer); break;
      case comm::Order::Kind::Pause: break;
      case comm::Order::Kind::Evaluate: {
        const Metrics metrics = worker.evaluate(*evaluation_);
        if (!has_loss) break;
        process_.tell({order->at, worker.index(), comm::Event::Kind::Evaluation, to_values(metrics), {}, {}});
        break;
      }
      case comm::Order::Kind::Watch: tell_squares(worker, order->at); break;
      case comm::Order::Kind::Save: worker.save(order->at, store.pending(order->at)); break;
      case comm::Order::Kind::Load: {
        const std::filesystem::path from = store.path(order->from);
        state::State state = state::read_state(from, state::read_manifest(from),
                                               [&](const std::string& name) { return worker.has_param(name); });
        state.step = order->next;
        worker.load(state);
        break;
      }
      case comm::Order::Kind::End: return number;
    }
  }
}

// Every process writes its own shards.
void Training::check_directory_is_shared() {
  const std::filesystem::path folder = checkpoints_.parent_path();
  std::string probe;
  if (process_.rank() == 0) {
    probe = (folder / fmt::format(".seen-by-all-{}", ::getpid())).string();
    if (!std::ofstream(probe)) probe.clear();  // a disk that cannot be written is said when it comes to it
  }
  probe = process_.broadcast(probe);
  if (probe.empty()) return;
  const std::string own = std::filesystem::exists(probe) ? "" : comm::host_name();
  const std::string blind = comm::first_of_all(process_, own);
  if (process_.rank() == 0) std::filesystem::remove(probe);
  if (blind.empty()) return;
  fail_input("checkpoints go to {}, which {} does not see; write --out with a directory that all hosts share",
             checkpoints_.string(), blind);
}

std::vector<int> Training::prepare_saving() {
  const Pipeline& pipeline = facts_.plan.pipeline;
  std::set<int> savers;
  for (const auto& workers : pipeline.stages) savers.insert(workers.front());
  if (checkpoints_.empty()) return {};
  const bool ahead = facts_.job.checkpoint.every.unit != job::Period::Unit::Off;
  on_all_workers([&](LocalWorker& local) {
    local.worker->prepare_saving(
        ahead, [this, part = local.worker->index()](int64_t step, const std::vector<float>& loss_scale,
                                                    const std::string& failure) {
          comm::Event event{step, part, comm::Event::Kind::Saved, {}, {}, {}};
          std::copy_n(loss_scale.begin(), std::min<size_t>(loss_scale.size(), 3), event.values.begin());
          std::copy_n(failure.begin(), std::min(failure.size(), event.failure.size() - 1), event.failure.begin());
          try {
            process_.tell(event);
          } catch (const std::exception&) {  // the run has failed, and says why
          }
        });
  });
  return {savers.begin(), savers.end()};
}

TrainingResult Training::run(const Observer& observer) {
  checkpoints_ = process_.broadcast(observer.checkpoints.string());
  if (!checkpoints_.empty() && process_.size() > 1) check_directory_is_shared();
  const std::vector<int> savers = prepare_saving();
  const int64_t left = facts_.total_steps - facts_.first_step;
  if (left > 0) schedule_for(std::min(longest_list(facts_.plan.pipeline), left));

  std::vector<std::future<void>> calls;
  std::atomic<size_t> last_order{0};
  for (LocalWorker& local : workers_) {
    calls.push_back(local.thread->call([&] {
      try {
        last_order = follow_orders(*local.worker, observer);
      } catch (...) {
        process_.abort();
        throw;
      }
    }));
  }
  if (process_.size() > 1) {
    process_.show([worker = workers_[0].worker.get()] { return worker->doing(); });
  }
  TrainingResult result;
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
      result = Conductor(facts_, process_, observer, savers).run();
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
  if (failure) std::rethrow_exception(failure);
  process_.orders().ended_with(last_order);
  for (const LocalWorker& local : workers_) {
    result.data_wait_s += local.worker->data_wait_s();
    result.save_wait_s += local.worker->save_wait_s();
  }
  end_ = {result.steps, result.samples};
  return result;
}

state::State Training::stored(Worker::Replicas which) {
  state::State state;
  std::mutex mutex;
  on_all_workers([&](LocalWorker& local) {
    state::State own;
    local.worker->store(own, which);
    const std::lock_guard lock(mutex);
    merge(state, own);
  });
  state.step = end_.step;
  state.samples = end_.samples;
  state.since = facts_.calendar.since;
  return state;
}

state::State Training::own_state() { return stored(Worker::Replicas::All); }

state::State Training::state() {
  state::State state = stored(Worker::Replicas::First);
  if (process_.size() > 1) {
    state::State all;
    for (const std::string& bytes : process_.gather(state::to_bytes(state))) {
      state::State part = state::state_from_bytes(bytes);
      merge(all, part);
    }
    all.step = state.step;
    all.samples = state.samples;
    all.since = state.since;
    state = std::move(all);
  }
  return state;
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

std::vector<WorkerRecord> Training::own_records() const {
  std::vector<WorkerRecord> records;
  for (const LocalWorker& local : workers_) records.push_back(local.worker->record());
  records[0].skipped = skipped();
  return records;
}

}  // namespace millrace::runtime
