// How the results of MPI's calls are checked.
#pragma once

#include <mpi.h>

#include "millrace/base/error.h"

namespace millrace::comm {

inline void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail_run("MPI: {}: {}", what, text);
}

}  // namespace millrace::comm
