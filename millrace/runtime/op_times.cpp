#include "millrace/runtime/op_times.h"

#include <algorithm>
#include <cstring>

#include "millrace/base/error.h"
#include "millrace/data/dataset.h"
#include "millrace/runtime/session.h"
#include "millrace/runtime/worker_thread.h"
#include "millrace/state/state.h"

namespace millrace::runtime {
namespace {

constexpr int kWarmUpSteps = 1, kTimedSteps = 3;

}  // namespace

std::vector<double> measure_op_seconds(const job::Job& job, const graph::Graph& graph, int threads, size_t memory_limit,
                                       const std::string& limit_reason, const OnMeasure& on_measure) {
  std::vector<double> seconds(graph.ops.size(), 0.0);
  WorkerThread thread;
  thread
      .call([&] {
        const auto backend = make_backend(job, threads, on_measure);
        SessionOptions options;
        options.velocity = job.optimizer.momentum > 0;
        options.evaluates = false;
        options.seed = job.seed;
        options.memory_limit = memory_limit;
        options.limit_reason = limit_reason;
        Session session(graph, *backend, options);
        session.load(state::initial_state(graph, job.seed));
        const int64_t rows = graph.batch();
        const auto data = data::make_dataset(job, data::Split::Train);
        std::vector<int64_t> samples(static_cast<size_t>(rows));
        for (int64_t row = 0; row < rows; ++row) samples[static_cast<size_t>(row)] = row % data->size();
        data->fill(samples, 0, session.images(), session.labels());
        for (int step = 0; step < kWarmUpSteps + kTimedSteps; ++step) {
          if (step == kWarmUpSteps) session.time_nodes(true);
          session.train_step(step, rows, 0.0, [&](int) { return rows; });
        }
        // Updates come once a step, everything else once a micro-batch.
        for (const NodeTime& time : session.node_times()) {
          const int share = time.node->kind == graph::OpKind::SgdStep ? job.parallel.microbatches : 1;
          if (time.node->op != graph::kNone) seconds[time.node->op] += time.seconds / kTimedSteps / share;
        }
      })
      .get();
  for (double& second : seconds) second = std::max(second, 1e-9);
  return seconds;
}

std::vector<double> measure_op_seconds_together(comm::Process& process, const job::Job& job, const graph::Graph& graph,
                                                int threads, size_t memory_limit, const std::string& limit_reason,
                                                const OnMeasure& on_measure) {
  std::vector<double> seconds(graph.ops.size());
  std::string bytes;
  std::exception_ptr failure;
  if (process.rank() == 0) {
    try {
      seconds = measure_op_seconds(job, graph, threads, memory_limit, limit_reason, on_measure);
      bytes.assign(reinterpret_cast<const char*>(seconds.data()), seconds.size() * sizeof(double));
    } catch (...) {
      failure = std::current_exception();
    }
  }
  bytes = process.broadcast(bytes);
  if (failure) std::rethrow_exception(failure);
  if (bytes.size() != seconds.size() * sizeof(double)) fail_run("process 0 could not measure the operators");
  std::memcpy(seconds.data(), bytes.data(), bytes.size());
  return seconds;
}

}  // namespace millrace::runtime
