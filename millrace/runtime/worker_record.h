// What a worker's part of a run came to, as plain data that travels between processes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/data/skip_log.h"
#include "millrace/runtime/timeline.h"

namespace millrace::runtime {

// Times and bytes are those of training, without evaluation.
struct WorkerRecord {
  int worker = 0;
  std::string device;  // "0:1"
  std::string host;
  std::vector<int> stages;
  int64_t planned_bytes = 0;
  double train_s = 0;               // in lists of training actions
  double busy_s = 0;                // of that, in kernels
  double waited_s = 0;              // of that, waiting for messages and sums, and handing them over
  double exposed_s = 0;             // of waiting, what messages and sums that were on their way may have caused
  double data_s = 0;                // of that, taking and waiting for data
  double transfer_s = 0;            // messages and sums on their way, whether or not anyone waited
  std::vector<int64_t> bytes_sent;  // to each worker
  data::Skipped skipped;            // by all workers of its process, in the record of their first
  // Samples whose frozen layers were not computed, because their output was kept, those whose were, and whether that
  // pays, in words; empty: there is no cache, or the worker does not read the data.
  int64_t rows_fetched = 0, rows_computed = 0;
  std::string cache_verdict;
  std::vector<Span> spans;  // the first of the training, evaluation with them
  LeftOut left_out;         // those after them
};

std::string to_text(const WorkerRecord& record);
WorkerRecord record_from_text(const std::string& text);

}  // namespace millrace::runtime
