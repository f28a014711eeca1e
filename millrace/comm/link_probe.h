// What a message takes between two workers, measured by sending it there and back.
#pragma once

#include "millrace/comm/endpoint.h"
#include "millrace/comm/process.h"

namespace millrace::comm {

struct LinkFigures {
  double bytes_per_s = 0;  // of a large message, one way
  double latency_s = 0;    // of a small one
};

struct ProbeOptions {
  size_t large_bytes = 32 << 20;
  int large_repeats = 10;
  int small_repeats = 500;
};

// Workers 0 and 1 of two; both call it, worker 0 is told the figures. Medians, the first messages not counted.
Topology probe_topology();
LinkFigures probe_link(Endpoint& endpoint, const ProbeOptions& options);

// Between two threads of this process.
LinkFigures probe_threads(const ProbeOptions& options);

}  // namespace millrace::comm
