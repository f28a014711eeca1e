// Who takes part in a training: the workers that were asked for, less those that are lost.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/launch_command.h"

namespace millrace::cli {

class Crew {
 public:
  // Without hosts `workers` on this one; 0: one process, or as many as the launcher knows of.
  Crew(std::vector<Host> hosts, int workers);

  const std::vector<Host>& all_hosts() const { return all_; }
  const std::vector<Host>& hosts() const { return hosts_; }  // that take part
  const std::vector<Host>& lost() const { return lost_; }
  int all_workers() const { return all_workers_; }
  int workers() const { return workers_; }
  bool is_empty() const { return !all_.empty() && hosts_.empty(); }
  bool is_reduced() const { return workers_ < all_workers_; }

  // Both return a line if something is different now, otherwise nothing.
  // All hosts were asked, and these did not answer.
  std::string leave_out(const std::vector<Host>& silent);
  // Why a start failed. On one host there is nobody to ask: a worker that is lost again is taken to be one too many.
  std::string learn_from(std::string_view reason);

 private:
  std::vector<Host> all_, hosts_, lost_;
  int all_workers_, workers_;
  std::optional<int> last_lost_worker_;
};

std::string names_of(const std::vector<Host>& hosts);  // "a, b"

}  // namespace millrace::cli
