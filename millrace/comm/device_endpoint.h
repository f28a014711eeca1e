// An endpoint for workers whose devices a fabric joins: what they send goes from device to device, in lanes of its own.
//
// A lane keeps an order and its sends wait for their receives, while messages are named and none may hold up another.
// So nothing enters a lane before both ends have come to it: the receiver tells the sender that a message is ready to
// be received, and the sender tells, as it sends it, which one is going; the receiver receives in that order. There is
// a lane for each direction between two workers, so that a lane has one sender, who alone decides the order. Sums have
// a lane for each group, and their order is the same on all members anyway.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "millrace/backend/memory.h"
#include "millrace/comm/endpoint.h"
#include "millrace/comm/sideband.h"

namespace millrace::comm {

class DeviceEndpoint : public Endpoint {
 public:
  // Joins the lanes, together with all other workers. The topology and the memory must outlive it. `host` sums what
  // lies on the host.
  DeviceEndpoint(const Topology& topology, backend::Memory& memory, std::unique_ptr<backend::Fabric> fabric,
                 std::unique_ptr<Sideband> sideband, std::unique_ptr<Endpoint> host);
  ~DeviceEndpoint() override;

  Ticket receive(int from, int tag, void* data, size_t bytes) override;
  Ticket send(int to, int tag, const void* data, size_t bytes) override;
  bool done(const Ticket& ticket) override;
  void start_sum(int group, int bucket, std::span<float> data) override;
  void await_sum(int group, int bucket) override;
  std::string way() const override { return "by " + fabric_->name(); }
  int64_t device_bytes() const override { return fabric_->memory_bytes(); }

  // From the thread that serves: moves what can move, so that a message leaves while its worker computes. Says whether
  // anything is under way; never waits.
  bool advance();

  // From any thread, once another worker has failed: nothing is under way any more, and all waits end.
  void abort();

 private:
  using Clock = std::chrono::steady_clock;

  // One end of a message; a tag has two, of which a worker that sends to itself has both.
  struct End {
    enum class State : uint8_t { Free, Called, Flying, Arrived } state = State::Free;
    bool ready = false;  // of one that sends: the other end has told
    int peer = 0;
    int64_t ready_bytes = 0;
    void* data = nullptr;
    size_t bytes = 0;
    int flight = -1;
    Clock::time_point start;
  };
  struct Sum {
    enum class State : uint8_t { Free, Flying, Arrived } state = State::Free;
    int flight = -1;
    Clock::time_point start;
  };
  struct SumGroup {
    int lane = -1;           // none: this worker has nothing to sum in it
    std::vector<Sum> sums;   // per bucket
    Clock::time_point free;  // when the last sum of the lane had arrived
  };

  static size_t incoming(int tag) { return 2 * static_cast<size_t>(tag); }
  static size_t outgoing(int tag) { return incoming(tag) + 1; }

  void join();
  End& open(size_t at, int peer, void* data, size_t bytes);
  void pass_to_itself(int tag);
  void pump();
  void take(const Notice& notice);
  void start_send(int tag);
  void check_size(int tag, size_t bytes, int64_t expected) const;
  void look_after_messages();
  void look_after_sums();
  void check() const;  // throws what ended the endpoint
  void take_counts();

  const Topology& topology_;
  backend::Memory& memory_;
  const std::unique_ptr<Endpoint> host_;

  mutable std::mutex mutex_;  // of all that follows
  std::unique_ptr<backend::Fabric> fabric_;
  std::unique_ptr<Sideband> sideband_;
  std::vector<int> lane_to_, lane_from_;  // per worker; -1: none
  std::vector<End> ends_;                 // two per tag
  std::vector<int> flying_;               // of ends_
  std::vector<SumGroup> groups_;
  int open_ends_ = 0, sums_flying_ = 0;
  bool aborted_ = false;
  std::exception_ptr failure_;  // of the thread that serves
  // Not yet told: that is the worker's thread's.
  double new_message_s_ = 0, new_sum_s_ = 0;
  size_t new_message_bytes_ = 0;
};

}  // namespace millrace::comm
