// What a run's directory shows from outside: the steps that were made, and the checkpoints there are.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace millrace::cli {

class RunWatch {
 public:
  // `goes_on`: the checkpoints that are there already belong to this training. Otherwise they are of a run that it is
  // to overwrite, and do not count.
  RunWatch(std::filesystem::path run, bool goes_on);

  // The step of the newest checkpoint to go on from.
  std::optional<int64_t> checkpoint() const;

  void begin_attempt(int64_t first_step);
  bool observe();  // whether metrics.jsonl grew since it was last asked
  bool made_progress();
  bool is_whole() const;  // whether the attempt wrote the last file of a training that came to its end
  std::optional<int64_t> last_step() const;  // that metrics.jsonl knows of, if the attempt wrote there

 private:
  struct Stamp {
    ino_t file = 0;
    int64_t bytes = 0, changed_ns = 0;
    bool operator==(const Stamp&) const = default;
  };
  static Stamp stamp_of(const std::filesystem::path& path);

  std::filesystem::path run_, metrics_, summary_;
  struct Former {
    std::filesystem::path path;
    Stamp stamp;
  };
  std::vector<Former> not_ours_;
  int64_t first_step_ = 0;
  std::optional<int64_t> first_checkpoint_;
  Stamp at_start_, last_, summary_at_start_;
  int64_t lowest_bytes_ = 0;  // a run that goes on drops the records of steps that it makes again
  bool grew_ = false;
};

}  // namespace millrace::cli
