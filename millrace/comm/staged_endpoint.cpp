#include "millrace/comm/staged_endpoint.h"

#include <algorithm>

namespace millrace::comm {

std::vector<std::byte>& StagedEndpoint::host_for(std::map<int, std::vector<std::byte>>& all, int tag, size_t bytes) {
  std::vector<std::byte>& host = all[tag];
  if (host.size() < bytes) host.resize(bytes);
  return host;
}

// What the transport counts is what this endpoint tells.
void StagedEndpoint::take_counts() {
  bytes_sent_ = inner_->bytes_sent();
  transfer_s_ = inner_->transfer_s();
}

Ticket StagedEndpoint::receive(int from, int tag, void* data, size_t bytes) {
  std::vector<std::byte>& host = host_for(incoming_, tag, bytes);
  const Ticket ticket = inner_->receive(from, tag, host.data(), bytes);
  arrivals_.push_back({ticket, &host, data, bytes});
  return ticket;
}

Ticket StagedEndpoint::send(int to, int tag, const void* data, size_t bytes) {
  std::vector<std::byte>& host = host_for(outgoing_, tag, bytes);
  memory_.copy(host.data(), data, bytes);
  const Ticket ticket = inner_->send(to, tag, host.data(), bytes);
  take_counts();
  return ticket;
}

bool StagedEndpoint::done(const Ticket& ticket) {
  if (!inner_->done(ticket)) return false;
  const auto arrival = std::find_if(arrivals_.begin(), arrivals_.end(), [&](const Arrival& it) {
    return it.ticket.place == ticket.place && it.ticket.completion == ticket.completion;
  });
  if (arrival != arrivals_.end()) {
    memory_.copy(arrival->data, arrival->host->data(), arrival->bytes);
    arrivals_.erase(arrival);
  }
  take_counts();
  return true;
}

void StagedEndpoint::start_sum(int group, int bucket, std::span<float> data) {
  Sum& sum = sums_[{group, bucket}];
  sum.host.resize(data.size());
  sum.data = data;
  memory_.copy(sum.host.data(), data.data(), data.size_bytes());
  inner_->start_sum(group, bucket, sum.host);
}

void StagedEndpoint::await_sum(int group, int bucket) {
  inner_->await_sum(group, bucket);
  const Sum& sum = sums_.at({group, bucket});
  memory_.copy(sum.data.data(), sum.host.data(), sum.data.size_bytes());
  take_counts();
}

}  // namespace millrace::comm
