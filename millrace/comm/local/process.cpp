// All workers are threads of this process: nothing to set up.
#include "millrace/comm/process.h"

#include <condition_variable>
#include <deque>
#include <mutex>

#include "millrace/comm/local/hub.h"

namespace millrace::comm {
namespace {

class LocalProcess : public Process {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  int size_on_host() const override { return 1; }
  std::unique_ptr<Process> beside() override { return make_local_process(); }

  void open(const Topology& topology) override { hub_ = std::make_unique<LocalHub>(topology); }
  std::unique_ptr<Endpoint> connect(int worker, backend::Memory& memory) override {
    return hub_->connect(worker, memory);
  }

  void tell(const Event& event) override {
    const std::lock_guard lock(mutex_);
    if (aborted_) throw Aborted();
    events_.push_back(event);
    events_.back().at = std::chrono::steady_clock::now();
    changed_.notify_one();
  }

  std::optional<Event> next_event(std::chrono::milliseconds wait) override {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, wait, [&] { return !events_.empty() || aborted_; });
    if (events_.empty()) {
      if (aborted_) throw Aborted();
      return std::nullopt;
    }
    const Event event = events_.front();
    events_.pop_front();
    return event;
  }

  void order(const Order& order) override { orders_.add(order); }
  void grant(int64_t step) override { orders_.grant(step); }
  OrderBook& orders() override { return orders_; }

  std::vector<std::string> gather(const std::string& text) override { return {text}; }
  std::string broadcast(const std::string& text) override { return text; }

  void abort() override {
    if (hub_) hub_->abort();
    orders_.abort();
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }

 private:
  std::unique_ptr<LocalHub> hub_;
  OrderBook orders_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> events_;
  bool aborted_ = false;
};

}  // namespace

std::unique_ptr<Process> make_local_process() { return std::make_unique<LocalProcess>(); }

}  // namespace millrace::comm
