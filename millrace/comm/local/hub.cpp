#include "millrace/comm/local/hub.h"

#include <algorithm>
#include <utility>

namespace millrace::comm {
namespace {

constexpr uint8_t kReceiver = 1, kSender = 2;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

class LocalEndpoint : public Endpoint {
 public:
  LocalEndpoint(LocalHub& hub, int worker, backend::Memory& memory)
      : Endpoint(worker, hub.topology_.num_workers), hub_(hub), memory_(memory) {
    for (const Group& group : hub.topology_.groups) {
      const auto& workers = group.workers;
      member_.push_back(static_cast<int>(std::find(workers.begin(), workers.end(), worker) - workers.begin()));
      rounds_.emplace_back(group.buckets, 0);
    }
  }

  Ticket receive(int /*from*/, int tag, void* data, size_t bytes) override {
    LocalHub::Place& place = hub_.places_[tag];
    place.to = data;
    return meet(place, tag, kReceiver, bytes);
  }

  Ticket send(int to, int tag, const void* data, size_t bytes) override {
    LocalHub::Place& place = hub_.places_[tag];
    place.from = data;
    bytes_sent_[to] += static_cast<int64_t>(bytes);
    return meet(place, tag, kSender, bytes);
  }

  bool done(const Ticket& ticket) override {
    if (hub_.places_[ticket.place].completions.load(std::memory_order_acquire) == ticket.completion) return true;
    check_abort();
    return false;
  }

  void start_sum(int group, int bucket, std::span<float> data) override {
    LocalHub::Sum& sum = *hub_.sums_[group][bucket];
    const auto members = static_cast<int64_t>(hub_.topology_.groups[group].workers.size());
    const auto bytes = static_cast<int64_t>(data.size_bytes());
    for (int worker : hub_.topology_.groups[group].workers) {
      if (worker != worker_) bytes_sent_[worker] += 2 * bytes / members;  // its share to each, each one's share to it
    }
    sum.data[member_[group]] = data;
    sum.arrived.fetch_add(1, std::memory_order_acq_rel);
  }

  void await_sum(int group, int bucket) override {
    LocalHub::Sum& sum = *hub_.sums_[group][bucket];
    const auto members = static_cast<uint32_t>(sum.data.size());
    const uint32_t round = ++rounds_[group][bucket];
    wait_for_count(sum.arrived, round * members);
    const auto start = std::chrono::steady_clock::now();
    add_share(sum, member_[group]);
    transfer_s_ += seconds_since(start);
    sum.finished.fetch_add(1, std::memory_order_acq_rel);
    wait_for_count(sum.finished, round * members);
  }

 private:
  void check_abort() const {
    if (hub_.aborted_.load(std::memory_order_relaxed)) throw Aborted();
  }

  Ticket meet(LocalHub::Place& place, int tag, uint8_t side, size_t bytes) {
    // Read before the other side can complete it.
    const Ticket ticket{tag, place.completions.load(std::memory_order_acquire) + 1};
    const uint8_t other = place.sides.fetch_or(side, std::memory_order_acq_rel);
    if (other != 0) {
      const auto start = std::chrono::steady_clock::now();
      memory_.copy(place.to, place.from, bytes);
      count_message(seconds_since(start), bytes);
      place.sides.store(0, std::memory_order_relaxed);
      place.completions.fetch_add(1, std::memory_order_release);
    }
    return ticket;
  }

  void wait_for_count(const std::atomic<uint32_t>& count, uint32_t wanted) {
    wait_until([&] {
      if (static_cast<int32_t>(count.load(std::memory_order_acquire) - wanted) >= 0) return true;
      check_abort();
      return false;
    });
  }

  // This member's elements of everyone's data, added in the order of the members.
  void add_share(LocalHub::Sum& sum, int member) {
    const size_t members = sum.data.size(), floats = sum.data[0].size();
    const size_t begin = floats * member / members, end = floats * (member + 1) / members;
    float* total = sum.data[0].data();
    for (size_t other = 1; other < members; ++other) {
      memory_.add(total + begin, sum.data[other].data() + begin, end - begin);
    }
    for (size_t other = 1; other < members; ++other) {
      memory_.copy(sum.data[other].data() + begin, total + begin, (end - begin) * sizeof(float));
    }
  }

  LocalHub& hub_;
  backend::Memory& memory_;
  std::vector<int> member_;                    // per group
  std::vector<std::vector<uint32_t>> rounds_;  // per group and bucket: sums awaited
};

LocalHub::LocalHub(Topology topology) : topology_(std::move(topology)), places_(topology_.num_tags) {
  for (const Group& group : topology_.groups) {
    sums_.emplace_back();
    for (int i = 0; i < group.buckets; ++i) {
      sums_.back().push_back(std::make_unique<Sum>());
      sums_.back().back()->data.resize(group.workers.size());
    }
  }
}

std::unique_ptr<Endpoint> LocalHub::connect(int worker, backend::Memory& memory) {
  return std::make_unique<LocalEndpoint>(*this, worker, memory);
}

}  // namespace millrace::comm
