#include "cli/restart_history.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <string.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <system_error>

#include "millrace/base/error.h"
#include "millrace/report/table.h"

namespace millrace::cli {
namespace {

std::string to_line(const Attempt& attempt) {
  nlohmann::ordered_json record{{"attempt", attempt.number},
                                {"began", std::round(attempt.began_s * 1e3) / 1e3},
                                {"seconds", std::round(attempt.seconds * 1e3) / 1e3}};
  if (attempt.end && attempt.end->signal != 0) record["signal"] = signal_name(attempt.end->signal);
  if (attempt.end && attempt.end->signal == 0) record["exit_code"] = attempt.end->exit_code;
  record["reason"] = attempt.reason;
  record["first_step"] = attempt.first_step;
  record["last_step"] = attempt.last_step ? nlohmann::ordered_json(*attempt.last_step) : nullptr;
  record["workers"] = attempt.workers;
  // A reason comes from elsewhere, and may hold any bytes.
  return record.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

void RestartHistory::add(const Attempt& attempt) {
  attempts_.push_back(attempt);
  std::error_code error;
  std::filesystem::create_directories(run_, error);
  // A run that begins anew has removed the file with the others.
  const bool all = !std::filesystem::exists(file(), error);
  std::string text;
  for (const Attempt& each : attempts_) {
    if (all || &each == &attempts_.back()) text += to_line(each);
  }
  const int to = ::open(file().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  const ssize_t written = to < 0 ? -1 : ::write(to, text.data(), text.size());
  const int failure = written < 0 ? errno : written < static_cast<ssize_t>(text.size()) ? ENOSPC : 0;
  if (to >= 0) ::close(to);
  if (failure != 0) fail_run("{}: cannot be written: {}", file().string(), ::strerror(failure));
}

std::string RestartHistory::table() const {
  report::Table table({"attempt", "began", "seconds", "step", "what happened"});
  for (const Attempt& attempt : attempts_) {
    const std::time_t began = static_cast<std::time_t>(attempt.began_s);
    table.add({std::to_string(attempt.number), fmt::format("{:%F %T}", fmt::localtime(began)),
               fmt::format("{:.1f}", attempt.seconds), attempt.last_step ? std::to_string(*attempt.last_step) : "-",
               attempt.reason});
  }
  return table.str();
}

}  // namespace millrace::cli
