// What became of each start of a supervised training: kept beside it as restarts.jsonl, and shown as a table.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/child_process.h"

namespace millrace::cli {

struct Attempt {
  int number = 1;
  double began_s = 0;  // since 1970
  double seconds = 0;
  std::optional<ChildEnd> end;  // none: it could not be started
  bool hung = false;
  std::string reason;  // what happened
  int64_t first_step = 0;
  std::optional<int64_t> last_step;  // none: it made none
  int workers = 0;                   // processes; 0: as many as the launcher says
};

class RestartHistory {
 public:
  explicit RestartHistory(std::filesystem::path run) : run_(std::move(run)) {}

  std::filesystem::path file() const { return run_ / "restarts.jsonl"; }
  // Also writes it to the file. Throws std::runtime_error if that cannot be; it is remembered all the same.
  void add(const Attempt& attempt);
  std::string table() const;

 private:
  std::filesystem::path run_;
  std::vector<Attempt> attempts_;
};

std::string signal_name(int signal);  // "SIGKILL"

}  // namespace millrace::cli
