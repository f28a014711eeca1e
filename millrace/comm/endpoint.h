// How workers talk: one endpoint per worker. Messages are named, not queued: (from, to, tag) is one place, a receive is
// opened ahead of its message, and neither side blocks before it waits. So no order of calls can deadlock, and no
// message can hold up another.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace millrace::comm {

// Another worker failed, so this one cannot go on. Says nothing of the reason: the one that failed does.
class Aborted : public std::runtime_error {
 public:
  Aborted() : std::runtime_error("stopped because another worker failed") {}
};

// One message or sum under way; done once its number of completions is reached.
struct Ticket {
  int place = -1;  // -1: nothing under way
  uint32_t completion = 0;
};

// Workers that sum their gradients: the replicas of a stage, in order.
struct Group {
  std::vector<int> workers;
  int buckets = 0;
  bool on_host = false;  // what is summed, wherever the workers compute
};

// What can be sent in a run, known before it: tags count from 0.
struct Topology {
  int num_workers = 1;
  int num_tags = 0;
  std::vector<Group> groups;
  std::vector<std::pair<int, int>> pairs = {};  // from and to: workers with messages; no pair twice
  bool joins_devices = true;                    // of several processes directly, where that can be
};

class Endpoint {
 public:
  virtual ~Endpoint() = default;

  int worker() const { return worker_; }

  // How it reaches other processes' devices, in words; empty where there is nothing to tell.
  virtual std::string way() const { return {}; }
  // Of the device's memory, taken by the transport.
  virtual int64_t device_bytes() const { return 0; }

  // A tag belongs to one sender and one receiver; it may be used again once its last message was waited for.
  virtual Ticket receive(int from, int tag, void* data, size_t bytes) = 0;
  virtual Ticket send(int to, int tag, const void* data, size_t bytes) = 0;
  virtual bool done(const Ticket& ticket) = 0;  // throws Aborted

  // Sums data over the workers of a group, in their order, into every worker's data. Each worker starts and awaits the
  // buckets of a group in the same order.
  virtual void start_sum(int group, int bucket, std::span<float> data) = 0;
  virtual void await_sum(int group, int bucket) = 0;

  // Whether nothing is under way any more.
  bool take(Ticket& ticket) {
    if (ticket.place >= 0 && !done(ticket)) return false;
    ticket.place = -1;
    return true;
  }
  void wait(Ticket& ticket) {
    if (ticket.place < 0) return;
    wait_until([&] { return done(ticket); });
    ticket.place = -1;
  }

  // Time that messages and sums of this worker were on their way, whether or not it waited for them.
  double transfer_s() const { return transfer_s_; }

  // What a byte of a message takes on its way, as measured so far; sums not counted.
  double seconds_per_byte() const { return message_bytes_ > 0 ? message_s_ / message_bytes_ : 0; }

  // Bytes sent to each worker so far.
  const std::vector<int64_t>& bytes_sent() const { return bytes_sent_; }

 protected:
  Endpoint(int worker, int num_workers) : worker_(worker), bytes_sent_(num_workers, 0) {}

  // Spins for a moment, then lets others have the core: a wait may last as long as another stage's pass.
  template <typename Ready>
  static void wait_until(Ready&& ready) {
    for (int i = 0; i < 200; ++i) {
      if (ready()) return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    for (int i = 0; i < 50; ++i) {
      if (ready()) return;
      std::this_thread::yield();
    }
    while (!ready()) std::this_thread::sleep_for(std::chrono::microseconds(30));
  }

  const int worker_;
  std::vector<int64_t> bytes_sent_;
  double transfer_s_ = 0;

  void count_message(double seconds, size_t bytes) {
    transfer_s_ += seconds;
    message_s_ += seconds;
    message_bytes_ += static_cast<double>(bytes);
  }

 private:
  double message_s_ = 0, message_bytes_ = 0;
};

}  // namespace millrace::comm
