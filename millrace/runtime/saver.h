// A worker's part in a checkpoint: a snapshot of its stages, written in the background. The worker goes on at once;
// only before it changes weights again does it wait for the copy.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "millrace/runtime/session.h"
#include "millrace/state/state.h"

namespace millrace::runtime {

class Saver {
 public:
  struct Part {
    int stage = 0;
    const Session* session = nullptr;
    Session::Wanted owns = {};  // where stages share parameters: those that are its to write
  };
  // Called from the saver's thread; the failure is empty if all is on the disk.
  using OnSaved = std::function<void(int64_t step, const std::vector<float>& loss_scale, const std::string& failure)>;

  // `ahead`: the memory of a snapshot is taken now, not when the first is made.
  Saver(std::vector<Part> parts, bool copies_in_background, bool ahead, OnSaved on_saved);
  ~Saver();  // after what is being written
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // From the worker's thread, between steps: into the directory, which exists.
  void save(int64_t step, const std::filesystem::path& directory);
  // Before weights are changed.
  void await_copy();

 private:
  void serve();
  void copy_weights();
  void write(const std::filesystem::path& directory);

  const std::vector<Part> parts_;
  const bool copies_in_background_;
  const OnSaved on_saved_;
  std::vector<state::State> snapshots_;  // of each part, used again

  std::mutex mutex_;
  std::condition_variable changed_;
  struct Task {
    int64_t step = 0;
    std::filesystem::path directory;
  };
  std::optional<Task> task_;  // until it is written
  bool copied_ = true;
  bool stop_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace millrace::runtime
