// What the workers of a run's trainings did, training after training, in memory that does not grow with their number:
// of each worker no more spans are kept than of one that trains alone, shared out so that every training has its first.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "millrace/runtime/worker_record.h"

namespace millrace::runtime {

// The most that each may have so that none has more than it wants, and all together no more than `all`.
size_t fair_share(std::span<const size_t> wanted, size_t all);

class RunRecords {
 public:
  explicit RunRecords(size_t spans_of_worker = kTraceSpans) : spans_of_worker_(spans_of_worker) {}

  // The records of the next training, of the workers of this process.
  void add(std::vector<WorkerRecord> training);

  const std::vector<std::vector<WorkerRecord>>& trainings() const { return trainings_; }

 private:
  void shorten(int worker);

  const size_t spans_of_worker_;
  std::vector<std::vector<WorkerRecord>> trainings_;
};

// On their way between processes: those of one, and all of them, in the order of their processes.
std::string to_text(const std::vector<std::vector<WorkerRecord>>& trainings);
std::vector<std::vector<WorkerRecord>> merge_records(const std::vector<std::string>& of_processes);

}  // namespace millrace::runtime
