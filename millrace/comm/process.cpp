#include "millrace/comm/process.h"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace millrace::comm {

// One process under mpirun is as good as none: its workers are threads.
bool is_one_of_several() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    if (const char* size = std::getenv(name)) return std::string_view(size) != "1";
  }
  return std::getenv("PMIX_RANK") != nullptr;
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

std::unique_ptr<Process> make_process() { return is_one_of_several() ? make_mpi_process() : make_local_process(); }

}  // namespace millrace::comm
