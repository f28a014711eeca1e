// Memory as the operating system sees it: what this process takes, and what it may still take.
#pragma once

#include <cstdint>
#include <filesystem>

namespace millrace::report {

struct ProcessMemory {
  int64_t resident_bytes = 0;  // now
  int64_t peak_bytes = 0;      // the highest since the start or the last reset
};

// From /proc/self/status; zeros where there is none.
ProcessMemory process_memory();

// Makes the peak start again from what is resident now, so that a baseline can be taken. False where the kernel
// does not allow it: then the peak still holds everything since the start.
bool reset_peak_memory();

// What can be allocated without swapping: the machine's available memory or what is left under the limits of this
// process's cgroup and those above it, whichever is smallest. The roots are parameters for the tests.
int64_t available_memory(const std::filesystem::path& proc = "/proc",
                         const std::filesystem::path& cgroups = "/sys/fs/cgroup");

}  // namespace millrace::report
