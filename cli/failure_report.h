// Why a start failed, read from its standard error: what the program says of itself, and who was lost. Workers name the
// one that was lost; where they were ended before they could, mpirun knows.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace millrace::cli {

class FailureReport {
 public:
  void read(std::string_view line);

  // Of the program's own lines, without "millrace: ", the first that names who was lost, otherwise the last.
  const std::string& reason() const { return named_.empty() ? last_ : named_; }

  // "worker 1 on b died by SIGKILL", as mpirun has it; empty if a worker was named already, or none was lost.
  std::string lost_by_launcher() const;

 private:
  std::string last_, named_;
  // The first that mpirun says of each.
  std::string died_, out_of_reach_, hung_up_, ended_;
};

// Of "worker 1 on b died; last: ...", or "... has not answered for 8 s; ...": the number.
std::optional<int> lost_worker(std::string_view reason);

}  // namespace millrace::cli
