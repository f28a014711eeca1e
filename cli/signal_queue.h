// Signals that are waited for like anything else, instead of breaking in.
#pragma once

#include <signal.h>

#include <vector>

namespace millrace::cli {

// Holds back SIGINT, SIGTERM, SIGUSR1, SIGCHLD and SIGPIPE of this thread until its end. What is ignored stays ignored.
class SignalQueue {
 public:
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  int fd() const { return fd_; }  // readable when one has come
  std::vector<int> take();
  const sigset_t& mask_before() const { return before_; }  // for children

 private:
  int fd_ = -1;
  sigset_t before_{};
  struct sigaction child_before_ {};
};

}  // namespace millrace::cli
