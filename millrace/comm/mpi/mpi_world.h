// This process among those that mpirun or srun has started, for as long as it is one of them. A thread of its own moves
// on what each of its MpiProcesses has under way while workers compute, and keeps watch over the others.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "millrace/comm/endpoint.h"
#include "millrace/comm/mpi/peer_watch.h"

namespace millrace::comm {

class MpiWorld {
 public:
  // What the thread looks after.
  class Served {
   public:
    virtual ~Served() = default;
    virtual bool serve() = 0;  // whether anything is under way
    virtual void wake() = 0;   // all that waits: the run was aborted
  };

  MpiWorld();
  ~MpiWorld();

  int rank() const { return rank_; }
  int size() const { return size_; }
  int size_on_host() const { return size_on_host_; }
  PeerWatch& watch() { return *watch_; }

  void add(Served& served);
  void remove(Served& served);

  // What `who` is doing. Empty: nothing any more, unless another has come after it.
  void show(const void* who, std::function<std::string()> doing);

  void abort();
  bool aborted() const { return aborted_.load(std::memory_order_relaxed); }
  void check_abort() const {
    if (aborted()) throw Aborted();
  }

  // This process ends, and has said why.
  void stop();
  void say_goodbye() { watch_->say_goodbye(); }

 private:
  void serve();

  int rank_ = 0, size_ = 1, size_on_host_ = 1;
  std::unique_ptr<PeerWatch> watch_;
  std::mutex mutex_;
  std::vector<Served*> served_;
  const void* shown_ = nullptr;
  std::atomic<bool> aborted_{false}, stop_{false};
  std::thread thread_;
};

}  // namespace millrace::comm
