// What the commands measure of the process and the machine.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>

#include "millrace/report/process_memory.h"
#include "millrace/report/summary.h"
#include "millrace/runtime/training.h"

namespace millrace::cli {

// The memory of the process from its making on: the baseline is taken before anything is planned.
class MemoryMeter {
 public:
  MemoryMeter() {
    report::reset_peak_memory();
    baseline_bytes_ = report::process_memory().resident_bytes;
  }

  report::PeakBytes peak(const runtime::Training& training) const {
    const int64_t process = report::process_memory().peak_bytes;
    return {static_cast<int64_t>(training.planned_bytes()), process - baseline_bytes_, process};
  }

 private:
  int64_t baseline_bytes_ = 0;
};

// Says once, on standard error, that a first run takes longer to start.
inline runtime::OnMeasure announce_measuring() {
  return [said = std::make_shared<bool>(false)](const std::string&) {
    if (!*said) fmt::print(stderr, "measuring kernels for this machine (kept for later runs) ...\n");
    *said = true;
  };
}

inline runtime::MachineLimit machine_limit() {
  return {static_cast<size_t>(report::available_memory()), "this machine"};
}

}  // namespace millrace::cli
