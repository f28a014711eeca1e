#include "millrace/comm/process.h"

#include <cstdlib>

namespace millrace::comm {

bool is_started_by_mpi() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"}) {
    if (std::getenv(name)) return true;
  }
  return false;
}

std::unique_ptr<Process> make_process() { return is_started_by_mpi() ? make_mpi_process() : make_local_process(); }

}  // namespace millrace::comm
