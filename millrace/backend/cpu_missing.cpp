// Stands in for backend/cpu/ where oneDNN is not built in.
#include "millrace/backend/cpu/cpu_backend.h"
#include "millrace/base/error.h"

namespace millrace::backend {

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions&, const OptimizerOptions&) {
  fail_input(
      "device: cpu needs oneDNN, which this build lacks; install libdnnl-dev and build with -DMILLRACE_CPU=ON, "
      "or write device: reference");
}

double measure_peak_gflops(int) { return 0; }

}  // namespace millrace::backend
