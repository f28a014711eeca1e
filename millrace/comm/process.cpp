#include "millrace/comm/process.h"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace millrace::comm {

bool is_started_by_mpi() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"}) {
    if (std::getenv(name)) return true;
  }
  return false;
}

bool is_first_process() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}) {
    if (const char* rank = std::getenv(name)) return std::string_view(rank) == "0";
  }
  return true;
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

std::unique_ptr<Process> make_process() { return is_started_by_mpi() ? make_mpi_process() : make_local_process(); }

}  // namespace millrace::comm
