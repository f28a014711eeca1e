// Stands in for comm/mpi where MPI is not built in.
#include "millrace/base/error.h"
#include "millrace/comm/process.h"

namespace millrace::comm {

std::unique_ptr<Process> make_mpi_process() {
  fail_input(
      "started under mpirun, but built without MPI; install libopenmpi-dev and openmpi-bin and build again, or start "
      "one process");
}

void end_failed_process(int /*exit_code*/) {}

}  // namespace millrace::comm
