// Asks hosts, all at once, whether a process can be started there.
#pragma once

#include <signal.h>

#include <chrono>
#include <memory>
#include <vector>

#include "cli/child_process.h"
#include "cli/launch_command.h"

namespace millrace::cli {

class HostProbes {
 public:
  HostProbes(const Launcher& launcher, const std::vector<Host>& hosts, const sigset_t& mask);

  bool done();  // does not wait; those that take too long are ended
  const std::vector<Host>& silent() const { return silent_; }
  std::vector<pid_t> pids() const;  // of those under way

 private:
  using Clock = std::chrono::steady_clock;
  struct Probe {
    Host host;
    std::unique_ptr<ChildProcess> process;
    bool asked_to_end = false;
  };
  std::vector<Probe> probes_;
  std::vector<Host> silent_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace millrace::cli
