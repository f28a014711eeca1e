// What asks a training to save and end: SIGTERM and SIGUSR1, which batch systems send before they take a machine away,
// and Ctrl-C, which is asked back once.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "millrace/comm/process.h"

namespace millrace::cli {

// What a command returns that has saved and ended because it was asked to (EX_TEMPFAIL): it can be gone on with.
constexpr int kSavedAndEnded = 75;

class EndRequest {
 public:
  // From here to its end the signals no longer end the process; one at a time. `say` shows a line to the user.
  EndRequest(comm::Process& process, std::function<void(const std::string&)> say);
  ~EndRequest();
  EndRequest(const EndRequest&) = delete;
  EndRequest& operator=(const EndRequest&) = delete;

  bool asked();

 private:
  using Clock = std::chrono::steady_clock;

  comm::Process& process_;
  std::function<void(const std::string&)> say_;
  bool asked_ = false;
  int answered_ = 0;  // interrupts
  Clock::time_point asked_back_;
};

}  // namespace millrace::cli
