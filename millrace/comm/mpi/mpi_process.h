// One process per worker under mpirun or srun. Launching, rendezvous and transport are MPI's; messages keep their names
// as tags; between GPUs they go another way where there is one. The world's thread moves sums over replicas forward
// while the worker computes, and passes events on.
#pragma once

#include <mpi.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "millrace/comm/mpi/mpi_world.h"
#include "millrace/comm/mpi/sum_engine.h"
#include "millrace/comm/process.h"

namespace millrace::comm {

class MpiDeviceEndpoint;
class MpiEndpoint;

class MpiProcess : public Process, private MpiWorld::Served {
 public:
  MpiProcess() : MpiProcess(std::make_shared<MpiWorld>(), /*is_first=*/true) {}
  ~MpiProcess() override;
  std::unique_ptr<Process> beside() override {
    return std::unique_ptr<Process>(new MpiProcess(world_, /*is_first=*/false));
  }

  int rank() const override { return world_->rank(); }
  int size() const override { return world_->size(); }
  int size_on_host() const override { return world_->size_on_host(); }

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
  void abort() override { world_->abort(); }
  void show(std::function<std::string()> doing) override { world_->show(this, std::move(doing)); }
  void set_silence(double seconds) override { world_->watch().set_silence(seconds); }
  void keep_term_signal() override { world_->watch().keep_term_signal(); }
  bool term_was_asked() const override { return world_->watch().term_was_asked(); }

 private:
  friend class MpiDeviceEndpoint;
  friend class MpiEndpoint;

  MpiProcess(std::shared_ptr<MpiWorld> world, bool is_first);

  bool serve() override;
  void wake() override;

  std::unique_ptr<Endpoint> join_devices(int worker, backend::Memory& memory, std::string& reason);
  [[noreturn]] void end_unjoined(const std::string& failure);
  void wait_for_all();
  uint64_t await_number(uint64_t own, const std::function<void(uint64_t*, MPI_Request*)>& start);
  void check_abort() const { world_->check_abort(); }
  void take_event(const Event& event);
  void take_events();
  void take_orders();

  // From process 0: an order, or how far is granted.
  struct Directive {
    bool is_grant = false;
    Order order;
    int64_t granted = 0;
  };
  void send_directive(const Directive& directive);

  const std::shared_ptr<MpiWorld> world_;
  const bool is_first_;
  MPI_Comm messages_ = MPI_COMM_NULL, sums_ = MPI_COMM_NULL, events_ = MPI_COMM_NULL, orders_comm_ = MPI_COMM_NULL,
           control_ = MPI_COMM_NULL, notices_ = MPI_COMM_NULL;
  Topology topology_;
  std::mutex sums_mutex_;  // where one engine takes another's place
  std::unique_ptr<SumEngine> sum_engine_;

  std::mutex sends_mutex_;
  MpiEndpoint* endpoint_ = nullptr;
  MpiDeviceEndpoint* device_endpoint_ = nullptr;

  // Where MPI puts what comes; after a failure it may still do so.
  struct Incoming {
    Event event;
    Directive directive;
  };
  std::unique_ptr<Incoming> incoming_ = std::make_unique<Incoming>();
  MPI_Request incoming_request_ = MPI_REQUEST_NULL;
  OrderBook orders_;
  MPI_Request directive_request_ = MPI_REQUEST_NULL;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> queue_;
};

}  // namespace millrace::comm
