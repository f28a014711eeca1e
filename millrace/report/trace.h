// The workers' timelines as a file for Perfetto (https://ui.perfetto.dev) or chrome://tracing.
#pragma once

#include <span>
#include <string>

#include "millrace/runtime/worker_record.h"

namespace millrace::report {

// Chrome's trace event format: a process per host, a thread per worker, a complete event per span, and `idle` where a
// worker's time is in no span. Microseconds from the first span of each host, for hosts share no clock.
std::string chrome_trace(std::span<const runtime::WorkerRecord> records);

}  // namespace millrace::report
