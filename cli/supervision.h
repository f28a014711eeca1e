// How a training is kept going: what a user says of it.
#pragma once

#include <string>

namespace millrace::cli {

struct Supervision {
  int restarts = 0;           // one fault more ends it all
  bool elastic = false;       // goes on with the workers that are left
  std::string hosts;          // "a:2,b": a worker for each slot; empty: this host
  int workers = 0;            // processes on this host; 0: one process, whose workers are threads
  std::string launcher;       // what starts several processes, with its options; empty: mpirun
  double hang_after_s = 600;  // without a step
  double probe_every_s = 30;  // how often lost hosts are asked
  double backoff_s = 1;       // before the first restart; twice as long for each that comes no further
  double grace_s = 10;        // between asking a child to end and killing it
};

// Refuses what cannot work: std::invalid_argument with one line.
void check_supervision(const Supervision& how);

}  // namespace millrace::cli
