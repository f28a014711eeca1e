#include "cli/failure_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "cli/restart_history.h"

namespace millrace::cli {
namespace {

constexpr std::string_view kPrefix = "millrace: ";

// What follows `text` in a line, if that is there.
std::optional<std::string_view> after(std::string_view line, std::string_view text) {
  const size_t at = line.find(text);
  return at == std::string_view::npos ? std::nullopt : std::optional(line.substr(at + text.size()));
}

std::optional<int> number_at(std::optional<std::string_view> text) {
  int number = 0;
  if (!text || std::from_chars(text->data(), text->data() + text->size(), number).ec != std::errc()) return {};
  return number;
}

std::string word_at(std::optional<std::string_view> text) {
  if (!text) return {};
  const size_t begin = std::min(text->find_first_not_of(' '), text->size());
  return std::string(text->substr(begin, text->find(' ', begin) - begin));
}

void keep_first(std::string& kept, const std::string& found) {
  if (kept.empty()) kept = found;
}

}  // namespace

std::optional<int> lost_worker(std::string_view reason) {
  constexpr std::string_view kWorker = "worker ";
  if (!reason.starts_with(kWorker)) return std::nullopt;
  reason.remove_prefix(kWorker.size());
  int number = 0;
  const auto [end, error] = std::from_chars(reason.data(), reason.data() + reason.size(), number);
  reason.remove_prefix(static_cast<size_t>(end - reason.data()));
  const bool is_lost =
      reason.find(" died") != std::string_view::npos || reason.find(" has not answered") != std::string_view::npos;
  return error == std::errc() && reason.starts_with(" on ") && is_lost ? std::optional(number) : std::nullopt;
}

// The texts are those of Open MPI 4: help-orterun.txt, help-errmgr-base.txt and help-mpi-btl-tcp.txt.
void FailureReport::read(std::string_view line) {
  if (line.starts_with(kPrefix)) {
    last_ = line.substr(kPrefix.size());
    if (lost_worker(last_)) keep_first(named_, last_);
    return;
  }
  if (const auto rank = number_at(after(line, " noticed that process rank "))) {
    const auto signal = number_at(after(line, " exited on signal "));
    keep_first(died_, fmt::format("worker {} on {} died{}", *rank, word_at(after(line, " on node ")),
                                  signal ? " by " + signal_name(*signal) : ""));
  } else if (const auto daemon = after(line, "Remote daemon: ")) {
    const std::string host = word_at(after(*daemon, " on node "));
    if (!host.empty()) keep_first(out_of_reach_, fmt::format("workers on {} are out of reach of mpirun", host));
  } else if (const auto peer = after(line, "Peer host: ")) {
    keep_first(hung_up_, fmt::format("worker on {} broke its connections off", word_at(peer)));
  } else if (const auto name = after(line, "Process name: [[")) {  // [[job,1],rank]
    const auto number = number_at(after(*name, "],"));
    if (number) keep_first(ended_, fmt::format("worker {} ended without a word", *number));
  }
}

std::string FailureReport::lost_by_launcher() const {
  if (!named_.empty()) return {};
  if (!died_.empty()) return died_;
  if (!out_of_reach_.empty()) return out_of_reach_;
  if (!last_.empty()) return {};  // it failed by itself and says why: others merely notice that it is gone
  return hung_up_.empty() ? ended_ : hung_up_;
}

}  // namespace millrace::cli
