#include "cli/signal_queue.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "millrace/base/error.h"

namespace millrace::cli {

SignalQueue::SignalQueue() {
  sigset_t held;
  sigemptyset(&held);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD, SIGPIPE}) sigaddset(&held, signal);
  fd_ = ::signalfd(-1, &held, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd_ < 0) fail_run("signals cannot be waited for: {}", std::strerror(errno));
  ::pthread_sigmask(SIG_BLOCK, &held, &before_);
  // Where it is ignored, which a parent may have left so, nobody learns how a child ended.
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &usual, &child_before_);
}

SignalQueue::~SignalQueue() {
  take();  // those that came too late for an answer would end the process now
  ::sigaction(SIGCHLD, &child_before_, nullptr);
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  ::close(fd_);
}

std::vector<int> SignalQueue::take() {
  std::vector<int> signals;
  signalfd_siginfo info{};
  while (::read(fd_, &info, sizeof info) == sizeof info) signals.push_back(static_cast<int>(info.ssi_signo));
  return signals;
}

}  // namespace millrace::cli
