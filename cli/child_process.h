// A program started as a child with a process group of its own, and the end of everything it started in turn.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace millrace::cli {

struct ChildEnd {
  int exit_code = 0;
  int signal = 0;  // that killed it; 0: it exited
};

class ChildProcess {
 public:
  // The program is looked for in PATH. `out` and `err` are descriptors, below 0: nowhere. `mask`: the signals it holds
  // back. Asked to end when this process dies. Throws std::invalid_argument if it cannot be started.
  ChildProcess(const std::vector<std::string>& command, int out, int err, const sigset_t& mask);
  ~ChildProcess();  // kills what is left
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  void send(int signal) const;  // to the process itself, not to its group
  void ask_to_end() const;      // the group; those that are stopped go on, so that they can
  void kill_all() const;        // the group, and descendants that have left it

  // How it ended, once it has; what was left of its group is killed then. Does not wait.
  std::optional<ChildEnd> poll();
  bool is_stopped() const { return stopped_; }

 private:
  pid_t pid_ = -1;
  bool stopped_ = false;
  std::optional<ChildEnd> end_;
};

// Processes whose parents ended become children of this one, instead of living on where nobody knows them: mpirun gives
// each worker a group of its own, so that a group alone does not tell what is left.
class Orphans {
 public:
  Orphans();
  ~Orphans();
  Orphans(const Orphans&) = delete;
  Orphans& operator=(const Orphans&) = delete;

  // Takes note of those that ended. `own`: children that somebody else waits for.
  void reap(const std::vector<pid_t>& own) const;
  // Kills them all and waits for their ends. Returns those that cannot be killed (they hang in the kernel).
  std::vector<pid_t> end(const std::vector<pid_t>& own) const;

 private:
  std::vector<pid_t> find(const std::vector<pid_t>& own) const;

  int adopted_before_ = 0;
  std::vector<pid_t> before_;  // children that were here first are none of ours
};

}  // namespace millrace::cli
