#include "millrace/runtime/saver.h"

#include <utility>

#include "millrace/state/checkpoint.h"

namespace millrace::runtime {

Saver::Saver(backend::Backend& backend, std::vector<Part> parts, const Options& options, OnSaved on_saved)
    : parts_(std::move(parts)),
      on_saved_(std::move(on_saved)),
      outlet_(backend.make_outlet()),
      snapshots_(parts_.size()) {
  for (const Part& part : parts_) {
    sources_.push_back(part.session->source());
    if (!options.copies) continue;
    const size_t bytes = part.session->state_bytes();
    copies_.emplace_back(static_cast<std::byte*>(backend.allocate(bytes)),
                         [&backend, bytes](std::byte* memory) { backend.release(memory, bytes); });
  }
  if (options.ahead) {
    outlet_->follow();
    read_forward_state();
    read_weights();
  }
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
  const bool in_place = copies_.empty();
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Session& session = *parts_[i].session;
    sources_[i] = in_place ? session.source() : session.copy_state(*outlet_, copies_[i].get());
  }
  outlet_->follow();
  if (in_place) read_forward_state();
  task_ = Task{step, directory};
  reading_ = in_place;
  changed_.notify_all();
}

void Saver::await_copy() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !reading_; });
}

double Saver::copy_s() const {
  const std::lock_guard lock(mutex_);
  return copy_s_;
}

void Saver::read_forward_state() {
  for (size_t i = 0; i < parts_.size(); ++i) {
    parts_[i].session->store_forward_state(sources_[i], *outlet_, snapshots_[i]);
  }
}

void Saver::read_weights() {
  for (size_t i = 0; i < parts_.size(); ++i) {
    parts_[i].session->store_weights(sources_[i], *outlet_, snapshots_[i], parts_[i].owns);
  }
}

void Saver::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || task_; });
    if (!task_) return;
    const Task task = *task_;
    lock.unlock();
    std::string failure;
    try {
      if (!copies_.empty()) read_forward_state();
      read_weights();
      const double copy_s = outlet_->copy_s();
      lock.lock();
      reading_ = false;
      copy_s_ += copy_s;
      changed_.notify_all();
      lock.unlock();
      write(task.directory);
    } catch (const std::exception& error) {
      failure = error.what();
    }
    on_saved_(task.step, snapshots_.empty() ? std::vector<float>() : snapshots_[0].loss_scale, failure);
    lock.lock();
    reading_ = false;
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
