#include "millrace/runtime/saver.h"

#include <utility>

#include "millrace/state/checkpoint.h"

namespace millrace::runtime {

Saver::Saver(std::vector<Part> parts, bool copies_in_background, bool ahead, OnSaved on_saved)
    : parts_(std::move(parts)),
      copies_in_background_(copies_in_background),
      on_saved_(std::move(on_saved)),
      snapshots_(parts_.size()) {
  if (ahead) copy_weights();
  thread_ = std::thread([this] { serve(); });
}

Saver::~Saver() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Saver::save(int64_t step, const std::filesystem::path& directory) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !task_; });  // the memory is one snapshot's
  for (size_t i = 0; i < parts_.size(); ++i) parts_[i].session->store_forward_state(snapshots_[i]);
  if (!copies_in_background_) copy_weights();
  task_ = Task{step, directory};
  copied_ = !copies_in_background_;
  changed_.notify_all();
}

void Saver::await_copy() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return copied_; });
}

void Saver::copy_weights() {
  for (size_t i = 0; i < parts_.size(); ++i) parts_[i].session->store_weights(snapshots_[i], parts_[i].owns);
}

void Saver::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || task_; });
    if (!task_) return;
    const Task task = *task_;
    const bool copies = !copied_;
    lock.unlock();
    std::string failure;
    try {
      if (copies) copy_weights();
      lock.lock();
      copied_ = true;
      changed_.notify_all();
      lock.unlock();
      write(task.directory);
    } catch (const std::exception& error) {
      failure = error.what();
    }
    on_saved_(task.step, snapshots_.empty() ? std::vector<float>() : snapshots_[0].loss_scale, failure);
    lock.lock();
    copied_ = true;
    task_.reset();
    changed_.notify_all();
  }
}

void Saver::write(const std::filesystem::path& directory) {
  for (size_t i = 0; i < parts_.size(); ++i) {
    const int part = parts_[i].stage;
    state::write_shard_list(directory, part, state::write_shards(directory, part, snapshots_[i]));
  }
}

}  // namespace millrace::runtime
