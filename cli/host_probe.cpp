#include "cli/host_probe.h"

namespace millrace::cli {
namespace {

using namespace std::chrono_literals;

constexpr auto kLongest = 15s;
constexpr auto kGrace = 2s;  // mpirun removes what it has put on the other host

}  // namespace

HostProbes::HostProbes(const Launcher& launcher, const std::vector<Host>& hosts, const sigset_t& mask) {
  for (const Host& host : hosts) {
    probes_.push_back({host, std::make_unique<ChildProcess>(launcher.probe(host), -1, -1, mask)});
  }
}

bool HostProbes::done() {
  const auto taken = Clock::now() - start_;
  std::erase_if(probes_, [&](Probe& probe) {
    if (const auto end = probe.process->poll()) {
      const bool answered = !probe.asked_to_end && end->signal == 0 && end->exit_code == 0;
      if (!answered) silent_.push_back(probe.host);
      return true;
    }
    if (taken > kLongest && !probe.asked_to_end) {
      probe.asked_to_end = true;
      probe.process->ask_to_end();
    }
    if (taken > kLongest + kGrace) probe.process->kill_all();
    return false;
  });
  return probes_.empty();
}

std::vector<pid_t> HostProbes::pids() const {
  std::vector<pid_t> pids;
  for (const Probe& probe : probes_) pids.push_back(probe.process->pid());
  return pids;
}

}  // namespace millrace::cli
