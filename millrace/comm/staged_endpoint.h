// An endpoint for workers whose memory the transport cannot reach: messages and sums pass through host memory that is
// set aside at their first use.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "millrace/backend/memory.h"
#include "millrace/comm/endpoint.h"

namespace millrace::comm {

class StagedEndpoint : public Endpoint {
 public:
  // `reason`: why it has to be so, for the user.
  StagedEndpoint(std::unique_ptr<Endpoint> inner, int num_workers, backend::Memory& memory, std::string reason = {})
      : Endpoint(inner->worker(), num_workers), inner_(std::move(inner)), memory_(memory), reason_(std::move(reason)) {}

  Ticket receive(int from, int tag, void* data, size_t bytes) override;
  Ticket send(int to, int tag, const void* data, size_t bytes) override;
  bool done(const Ticket& ticket) override;
  void start_sum(int group, int bucket, std::span<float> data) override;
  void await_sum(int group, int bucket) override;
  std::string way() const override { return reason_.empty() ? "through the host" : "through the host: " + reason_; }

 private:
  // A message on its way in: where it has to go.
  struct Arrival {
    Ticket ticket;
    std::vector<std::byte>* host = nullptr;
    void* data = nullptr;
    size_t bytes = 0;
  };
  struct Sum {
    std::vector<float> host;
    std::span<float> data;
  };
  std::vector<std::byte>& host_for(std::map<int, std::vector<std::byte>>& all, int tag, size_t bytes);
  void take_counts();

  std::unique_ptr<Endpoint> inner_;
  backend::Memory& memory_;
  const std::string reason_;
  std::map<int, std::vector<std::byte>> incoming_, outgoing_;  // by tag
  std::vector<Arrival> arrivals_;
  std::map<std::pair<int, int>, Sum> sums_;  // by group and bucket
};

}  // namespace millrace::comm
