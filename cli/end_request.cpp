#include "cli/end_request.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <utility>

namespace millrace::cli {
namespace {

constexpr auto kTimeToAnswer = std::chrono::seconds(10);
constexpr int kPatience = 3;  // interrupts: asked back, saving, at once

// A signal's handler knows nothing but globals.
std::atomic<int> interrupts{0};
std::atomic<bool> told{false};

void on_interrupt(int signal) {
  if (interrupts.fetch_add(1) + 1 < kPatience) return;
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void handle(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  struct sigaction inherited {};
  ::sigaction(signal, nullptr, &inherited);
  if (inherited.sa_handler != SIG_IGN) ::sigaction(signal, &action, nullptr);  // ignored stays ignored
}

}  // namespace

EndRequest::EndRequest(comm::Process& process, std::function<void(const std::string&)> say)
    : process_(process), say_(std::move(say)) {
  interrupts = 0;
  told = false;
  handle(SIGUSR1, [](int) { told = true; });
  handle(SIGINT, on_interrupt);
  if (process.size() > 1) {
    process.keep_term_signal();
  } else {
    handle(SIGTERM, [](int) { told = true; });
  }
}

EndRequest::~EndRequest() {
  for (const int signal : {SIGUSR1, SIGINT}) handle(signal, SIG_DFL);
  if (process_.size() == 1) handle(SIGTERM, SIG_DFL);
}

bool EndRequest::asked() {
  if (asked_) return true;
  if (told || process_.term_was_asked()) {
    say_("asked to end: saving a checkpoint first");
    return asked_ = true;
  }
  const int count = interrupts;
  if (count == answered_) return false;
  answered_ = count;
  const auto now = Clock::now();
  const bool confirmed = asked_back_ != Clock::time_point{} && now - asked_back_ < kTimeToAnswer;
  if (::isatty(STDERR_FILENO) == 0 || confirmed || count > 1) {
    say_("saving a checkpoint, then ending; Ctrl-C once more ends at once");
    return asked_ = true;
  }
  asked_back_ = now;
  say_("end? Ctrl-C again: save a checkpoint and end; without it training goes on");
  return false;
}

}  // namespace millrace::cli
