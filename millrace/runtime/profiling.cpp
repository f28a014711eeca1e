#include "millrace/runtime/profiling.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <semaphore>
#include <set>
#include <thread>

#include "millrace/backend/style.h"
#include "millrace/base/error.h"
#include "millrace/data/dataset.h"
#include "millrace/model/model.h"
#include "millrace/profile/describe.h"
#include "millrace/runtime/worker_thread.h"

namespace millrace::runtime {
namespace {

using graph::BufferId;
using graph::Pass;
using profile::Operator;
using profile::Profile;
using profile::Seconds;

constexpr int kWarmupSteps = 2;
constexpr int kNumPasses = 4;

// Which of an operator's four times a node counts in.
int pass_index(Pass pass) {
  switch (pass) {
    case Pass::InputGrad: return 1;
    case Pass::WeightGrad: return 2;
    case Pass::Update: return 3;
    default: return 0;
  }
}

Seconds& seconds_of(Operator& op, int pass) {
  const std::array<Seconds*, kNumPasses> all{&op.forward, &op.input_grad, &op.weight_grad, &op.update};
  return *all[static_cast<size_t>(pass)];
}

// Of sorted values, between neighbours.
double quantile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (at - static_cast<double>(below));
}

Seconds summary(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {quantile(values, 0.5), quantile(values, 0.75) - quantile(values, 0.25)};
}

// Names of algorithms are words; a list of them is separated by spaces.
std::string one_word(std::string name) {
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

// Times of single steps: per operator and pass one number for each step, and whole steps.
class Clock {
 public:
  explicit Clock(Session& session) : session_(session), passes_(session.graph().ops.size()) {}

  void warm_up() {
    for (int i = 0; i < kWarmupSteps; ++i) step();
  }
  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      session_.time_nodes(false);
      const auto before = std::chrono::steady_clock::now();
      step();
      whole_.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count());
      session_.time_nodes(true);
      step();
      take();
    }
    session_.time_nodes(false);
  }
  // On a device of its own the marks between nodes keep kernels from following each other closely: what they cost is
  // the same for each, and is taken off.
  static void take_off_marks(Profile& profile) {
    double sum = 0;
    int timed = 0;
    for (Operator& op : profile.operators) {
      for (int pass = 0; pass < kNumPasses; ++pass) {
        sum += seconds_of(op, pass).median;
        timed += seconds_of(op, pass).median > 0 ? 1 : 0;
      }
    }
    if (sum <= profile.step_s || timed == 0) return;
    const double each = (sum - profile.step_s) / timed;
    double left = 0;
    for (Operator& op : profile.operators) {
      for (int pass = 0; pass < kNumPasses; ++pass) {
        double& seconds = seconds_of(op, pass).median;
        left += seconds = std::max(seconds - each, 0.2 * seconds);
      }
    }
    for (Operator& op : profile.operators) {
      for (int pass = 0; pass < kNumPasses; ++pass) seconds_of(op, pass).median *= profile.step_s / left;
    }
  }
  void write(Profile& profile) const {
    for (size_t op = 0; op < passes_.size(); ++op) {
      for (int pass = 0; pass < kNumPasses; ++pass) {
        seconds_of(profile.operators[op], pass) = summary(passes_[op][static_cast<size_t>(pass)]);
      }
    }
    profile.step_s = summary(whole_).median;
  }

 private:
  void step() {
    const int64_t rows = session_.graph().batch();
    session_.train_step(0, rows, 0.0, [&](int) { return rows; });
  }
  void take() {
    for (auto& op : passes_) {
      for (auto& times : op) times.push_back(0);
    }
    for (const NodeTime& time : session_.node_times()) {
      passes_[time.node->op][static_cast<size_t>(pass_index(time.node->pass))].back() += time.seconds;
    }
  }

  Session& session_;
  std::vector<std::array<std::vector<double>, kNumPasses>> passes_;
  std::vector<double> whole_;
};

// Workers that keep busy until they are told to stop.
class Neighbours {
 public:
  ~Neighbours() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  // `prepare` makes what the neighbour does again and again.
  void start(std::function<std::function<void()>()> prepare) {
    threads_.emplace_back([this, prepare = std::move(prepare)] {
      try {
        const std::function<void()> step = prepare();
        step();
        busy_.release();
        while (!stop_.load(std::memory_order_relaxed)) step();
      } catch (const std::exception&) {
        // Measuring goes on without this one: what it could not do, the worker that is measured says better.
        busy_.release();
      }
    });
  }
  void wait_until_busy() {
    for (size_t i = 0; i < threads_.size(); ++i) busy_.acquire();
  }

 private:
  std::atomic<bool> stop_{false};
  std::counting_semaphore<> busy_{0};
  std::vector<std::thread> threads_;
};

void put_samples(const job::Job& job, Session& session) {
  const auto data = data::make_dataset(job, data::Split::Train);
  std::vector<int64_t> samples(static_cast<size_t>(session.graph().batch()));
  std::iota(samples.begin(), samples.end(), 0);
  for (int64_t& sample : samples) sample %= data->size();
  std::vector<std::byte> features(samples.size() * static_cast<size_t>(data->feature_bytes()));
  std::vector<int32_t> labels(samples.size() * static_cast<size_t>(data->label_elements()));
  data->reader()->fill(samples, 0, features.data(), labels.data());
  session.put_input(0, features.data(), labels.data());
}

}  // namespace

Profile describe_operators(const Session& session) {
  const graph::Graph& graph = session.graph();
  Profile profile = profile::describe(graph, session.training_program(),
                                      [&](BufferId id) { return static_cast<int64_t>(session.buffer_bytes(id)); });
  std::vector<std::array<std::string, 3>> algorithms(graph.ops.size(), {"-", "-", "-"});
  for (const NodeTime& time : session.node_times()) {
    const graph::Node& node = *time.node;
    Operator& op = profile.operators[node.op];
    if (node.kind != graph.ops[node.op].kind) continue;  // a mask, a sum or an update that belongs to it
    const auto pass = static_cast<size_t>(pass_index(node.pass));
    op.workspace_bytes[pass] = std::max(op.workspace_bytes[pass], static_cast<int64_t>(time.scratch_bytes));
    algorithms[node.op][pass] = one_word(time.algorithm);
  }
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const auto& [forward, input_grad, weight_grad] = algorithms[i];
    profile.operators[i].algorithm = forward + " " + input_grad + " " + weight_grad;
  }
  return profile;
}

double sum_s(const Profile& profile) {
  double sum = 0;
  for (const Operator& op : profile.operators) {
    sum += op.seconds();
  }
  return sum;
}

double gap(const Profile& profile) { return sum_s(profile) / profile.step_s - 1; }

Profiled measure_profile(const job::Job& job, const ProfilingOptions& options, const MachineLimit& limit,
                         const OnMeasure& on_measure) {
  if (options.repeats < 1) fail_input("repeats: {} steps cannot be timed; write 1 or more", options.repeats);
  const int64_t rows = options.rows > 0 ? options.rows : job.batch / job.parallel.microbatches;
  const graph::Graph graph = model::training_graph(job, rows);
  const int threads = options.threads > 0 ? options.threads : thread_count(job);
  SessionOptions session_options;
  session_options.rule = model::update_rule(job);
  session_options.evaluates = false;
  session_options.seed = job.seed;
  session_options.style = backend::style_of(job.device);
  session_options.loss_scale = job.loss_scale.start;
  session_options.memory_limit = limit.memory_bytes / static_cast<size_t>(options.beside + 1);
  session_options.limit_reason = limit.source;
  const auto prepare = [&](Session& session) {
    session.load(state::initial_state(graph, job.seed));
    put_samples(job, session);
  };
  Profiled profiled;
  Profile& profile = profiled.profile;
  Neighbours neighbours;
  WorkerThread thread;
  thread
      .call([&] {
        const auto backend = make_backend(job, threads, on_measure);
        Session session(graph, *backend, session_options);
        prepare(session);
        for (int i = 0; i < options.beside; ++i) {
          neighbours.start([&]() -> std::function<void()> {
            const std::shared_ptr<backend::Backend> own_backend = make_backend(job, threads, {});
            const auto own = std::make_shared<Session>(graph, *own_backend, session_options);
            prepare(*own);
            return [own_backend, own, rows] { own->train_step(0, rows, 0.0, [&](int) { return rows; }); };
          });
        }
        neighbours.wait_until_busy();
        profile = describe_operators(session);
        profile.device = device_name(job, threads);
        Clock(session).warm_up();
        for (int attempt = 0; attempt < options.attempts; ++attempt) {
          Clock clock(session);
          clock.run(options.repeats);
          Profile measured = profile;
          clock.write(measured);
          if (!backend->on_host()) Clock::take_off_marks(measured);
          if (attempt == 0 || measured.step_s < profile.step_s) profile = std::move(measured);
          profiled.attempts = attempt + 1;
          if (std::abs(gap(profile)) <= kLargestGap) break;
        }
      })
      .get();
  return profiled;
}

}  // namespace millrace::runtime
