// The workers' timelines as a file for Perfetto (https://ui.perfetto.dev) or chrome://tracing.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "millrace/report/transitions.h"
#include "millrace/runtime/worker_record.h"

namespace millrace::report {

// Of all workers and trainings: those that a trace shows, and those it has no room for.
struct SpanCounts {
  int64_t kept = 0, left_out = 0;
};
SpanCounts count_spans(std::span<const std::vector<runtime::WorkerRecord>> trainings);

// Chrome's trace event format: a process per host, a thread per worker, a complete event per span, and `idle` where a
// worker's time is in no span. Microseconds from the first span of each host, for hosts share no clock.
// Where spans of a worker were not kept, one event says how many, and `otherData` how many there are in all.
std::string chrome_trace(std::span<const runtime::WorkerRecord> records);

// The trainings of a run one after another, on one axis. Where there are several, or layers stand still, a process of
// its own, `run`, shows each of them, the pauses between them with their reasons, and as counters how many layers were
// frozen, on how many stages and replicas the rest ran.
// `trainings`: the records of each stretch of the course.
std::string chrome_trace(const Course& course, std::span<const std::vector<runtime::WorkerRecord>> trainings);

}  // namespace millrace::report
