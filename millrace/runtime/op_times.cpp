#include "millrace/runtime/op_times.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>

#include "millrace/base/error.h"
#include "millrace/runtime/profiling.h"

namespace millrace::runtime {

std::vector<double> op_seconds(const profile::Profile& profile, int microbatches) {
  std::vector<double> seconds;
  for (const profile::Operator& op : profile.operators) {
    const double passes = op.forward.median + op.input_grad.median + op.weight_grad.median;
    seconds.push_back(std::max(passes + op.update.median / microbatches, 1e-9));  // a cut needs some weight everywhere
  }
  return seconds;
}

std::vector<double> measure_op_seconds_together(comm::Process& process, const job::Job& job, int threads,
                                                const MachineLimit& limit, const OnMeasure& on_measure) {
  std::string bytes;
  std::exception_ptr failure;
  if (process.rank() == 0) {
    try {
      const ProfilingOptions options{.threads = threads, .repeats = 3, .attempts = 1};
      const Profiled profiled = measure_profile(job, options, limit, on_measure);
      const std::vector<double> seconds = op_seconds(profiled.profile, job.parallel.microbatches);
      bytes.assign(reinterpret_cast<const char*>(seconds.data()), seconds.size() * sizeof(double));
    } catch (...) {
      failure = std::current_exception();
    }
  }
  bytes = process.broadcast(bytes);
  if (failure) std::rethrow_exception(failure);
  if (bytes.empty()) fail_run("process 0 could not measure the operators");
  std::vector<double> seconds(bytes.size() / sizeof(double));
  std::memcpy(seconds.data(), bytes.data(), bytes.size());
  return seconds;
}

}  // namespace millrace::runtime
