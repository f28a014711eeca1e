// One process per worker under mpirun or srun. Launching, rendezvous and transport are MPI's; messages keep their names
// as tags. A thread of its own moves sums over replicas forward while the worker computes, passes events on, and keeps
// watch over the other processes.
#pragma once

#include <mpi.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "millrace/comm/mpi/peer_watch.h"
#include "millrace/comm/mpi/sum_engine.h"
#include "millrace/comm/process.h"

namespace millrace::comm {

class MpiEndpoint;

class MpiProcess : public Process {
 public:
  MpiProcess();
  ~MpiProcess() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int size_on_host() const override { return size_on_host_; }

  void open(const Topology& topology) override;
  std::unique_ptr<Endpoint> connect(int worker, backend::Memory& memory) override;
  void tell(const Event& event) override;
  std::optional<Event> next_event(std::chrono::milliseconds wait) override;
  std::vector<std::string> gather(const std::string& text) override;
  std::string broadcast(const std::string& text) override;
  void abort() override;
  void show(std::function<std::string()> doing) override;

 private:
  friend class MpiEndpoint;

  void serve();
  void wait_for_all();
  void check_abort() const {
    if (aborted_.load(std::memory_order_relaxed)) throw Aborted();
  }
  void take_event(const Event& event);

  int rank_ = 0, size_ = 1, size_on_host_ = 1;
  MPI_Comm messages_ = MPI_COMM_NULL, sums_ = MPI_COMM_NULL, events_ = MPI_COMM_NULL, control_ = MPI_COMM_NULL;
  Topology topology_;
  std::unique_ptr<SumEngine> sum_engine_;
  std::unique_ptr<PeerWatch> peer_watch_;

  std::mutex sends_mutex_;
  MpiEndpoint* endpoint_ = nullptr;

  Event incoming_;
  MPI_Request incoming_request_ = MPI_REQUEST_NULL;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> queue_;

  std::atomic<bool> aborted_{false}, stop_{false};
  std::thread thread_;
};

}  // namespace millrace::comm
