#include "cli/crew.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cli/failure_report.h"
#include "millrace/report/units.h"

namespace millrace::cli {
Crew::Crew(std::vector<Host> hosts, int workers)
    : all_(std::move(hosts)),
      hosts_(all_),
      all_workers_(all_.empty() ? workers : count_slots(all_)),
      workers_(all_workers_) {}

std::string Crew::leave_out(const std::vector<Host>& silent) {
  const std::vector<Host> lost_before = std::exchange(lost_, {});
  hosts_.clear();
  for (const Host& host : all_) {
    const bool answers = std::find(silent.begin(), silent.end(), host) == silent.end();
    (answers ? hosts_ : lost_).push_back(host);
  }
  workers_ = count_slots(hosts_);
  if (lost_ == lost_before || hosts_.empty()) return {};
  if (lost_.empty()) {
    return fmt::format("all hosts answer: going on with {}, on {}", report::counted(workers_, "worker"),
                       to_text(hosts_));
  }
  return fmt::format("no answer from {}: going on with {} of {}, on {}", names_of(lost_), workers_,
                     report::counted(all_workers_, "worker"), to_text(hosts_));
}

std::string Crew::learn_from(std::string_view reason) {
  if (!all_.empty() || workers_ < 2) return {};
  const std::optional<int> worker = lost_worker(reason);
  const bool again = worker && worker == last_lost_worker_;
  last_lost_worker_ = again ? std::nullopt : worker;  // with one fewer they have other numbers
  if (!again) return {};
  --workers_;
  return fmt::format("worker {} was lost twice in a row: going on with {} of {}", *worker, workers_,
                     report::counted(all_workers_, "worker"));
}

std::string names_of(const std::vector<Host>& hosts) {
  std::string names;
  for (const Host& host : hosts) names += (names.empty() ? "" : ", ") + host.name;
  return names;
}

}  // namespace millrace::cli
