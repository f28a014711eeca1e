// One process per worker under mpirun or srun. Launching, rendezvous and transport are MPI's; messages keep their names
// as tags; between GPUs they go another way where there is one. A thread of its own moves sums over replicas forward
// while the worker computes, passes events on, and keeps watch over the other processes.
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

class MpiDeviceEndpoint;
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
  void decline_to_join() override;
  void tell(const Event& event) override;
  std::optional<Event> next_event(std::chrono::milliseconds wait) override;
  void order(const Order& order) override;
  void grant(int64_t step) override;
  OrderBook& orders() override { return orders_; }
  std::vector<std::string> gather(const std::string& text) override;
  std::string broadcast(const std::string& text) override;
  void send(int to, std::span<const std::byte> bytes) override;
  void receive(int from, std::span<std::byte> bytes) override;
  void abort() override;
  void show(std::function<std::string()> doing) override;
  void set_silence(double seconds) override { peer_watch_->set_silence(seconds); }
  void keep_term_signal() override { peer_watch_->keep_term_signal(); }
  bool term_was_asked() const override { return peer_watch_->term_was_asked(); }

 private:
  friend class MpiDeviceEndpoint;
  friend class MpiEndpoint;

  std::unique_ptr<Endpoint> join_devices(int worker, backend::Memory& memory, std::string& reason);
  [[noreturn]] void end_unjoined(const std::string& failure);
  void serve();
  void wait_for_all();
  void check_abort() const {
    if (aborted_.load(std::memory_order_relaxed)) throw Aborted();
  }
  void take_event(const Event& event);
  void take_orders();

  // From process 0: an order, or how far is granted.
  struct Directive {
    bool is_grant = false;
    Order order;
    int64_t granted = 0;
  };
  void send_directive(const Directive& directive);

  int rank_ = 0, size_ = 1, size_on_host_ = 1;
  MPI_Comm messages_ = MPI_COMM_NULL, sums_ = MPI_COMM_NULL, events_ = MPI_COMM_NULL, orders_comm_ = MPI_COMM_NULL,
           control_ = MPI_COMM_NULL, notices_ = MPI_COMM_NULL;
  Topology topology_;
  std::unique_ptr<SumEngine> sum_engine_;
  std::unique_ptr<PeerWatch> peer_watch_;

  std::mutex sends_mutex_;
  MpiEndpoint* endpoint_ = nullptr;
  MpiDeviceEndpoint* device_endpoint_ = nullptr;

  Event incoming_;
  MPI_Request incoming_request_ = MPI_REQUEST_NULL;
  OrderBook orders_;
  Directive incoming_directive_;
  MPI_Request directive_request_ = MPI_REQUEST_NULL;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> queue_;

  std::atomic<bool> aborted_{false}, stop_{false};
  std::thread thread_;
};

}  // namespace millrace::comm
