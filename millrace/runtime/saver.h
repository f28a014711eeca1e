// A worker's part in a checkpoint: a snapshot of its stages, written in the background. The worker goes on at once.
// What is read are its weights as they lie, and it waits before it changes them; or, on a device with memory of its
// own, a copy there, which the device makes between two tasks and nobody waits for.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "millrace/backend/backend.h"
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
  struct Options {
    bool ahead = false;   // the memory of a snapshot is taken now, not when the first is made
    bool copies = false;  // of each part's Session::state_bytes(), in the device's memory
  };
  // Called from the saver's thread; the failure is empty if all is on the disk.
  using OnSaved = std::function<void(int64_t step, const std::vector<float>& loss_scale, const std::string& failure)>;

  // All but its own thread is the worker's.
  Saver(backend::Backend& backend, std::vector<Part> parts, const Options& options, OnSaved on_saved);
  ~Saver();  // after what is being written
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // Between steps: into the directory, which exists.
  void save(int64_t step, const std::filesystem::path& directory);
  // Before weights are changed.
  void await_copy();
  // What copies in the device's memory took of its time, of all snapshots that were read.
  double copy_s() const;

 private:
  void serve();
  void read_forward_state();
  void read_weights();
  void write(const std::filesystem::path& directory);

  const std::vector<Part> parts_;
  const OnSaved on_saved_;
  const std::unique_ptr<backend::Outlet> outlet_;
  // Of each part.
  std::vector<std::shared_ptr<std::byte>> copies_;  // none: what is read is the session's own memory
  std::vector<Session::Source> sources_;
  std::vector<state::State> snapshots_;  // used again

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  struct Task {
    int64_t step = 0;
    std::filesystem::path directory;
  };
  std::optional<Task> task_;  // until it is written
  bool reading_ = false;      // the session's own memory
  bool stop_ = false;
  double copy_s_ = 0;
  std::thread thread_;  // last: it uses the others
};

}  // namespace millrace::runtime
