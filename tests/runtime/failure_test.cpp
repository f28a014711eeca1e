// A run of which one part fails: the others end, and what comes out says where it failed.
#include <gmock/gmock.h>

#include <chrono>
#include <memory>
#include <utility>

#include "runtime/training_harness.h"

namespace millrace::runtime {
namespace {

using job::Mode;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

// Passes everything on, and breaks at one of its sends or sums.
class BreakingEndpoint : public comm::Endpoint {
 public:
  BreakingEndpoint(std::unique_ptr<comm::Endpoint> inner, int num_workers, int breaks_at)
      : Endpoint(inner->worker(), num_workers), inner_(std::move(inner)), left_(breaks_at) {}

  comm::Ticket receive(int from, int tag, void* data, size_t bytes) override {
    return inner_->receive(from, tag, data, bytes);
  }
  comm::Ticket send(int to, int tag, const void* data, size_t bytes) override {
    count();
    return inner_->send(to, tag, data, bytes);
  }
  bool done(const comm::Ticket& ticket) override { return inner_->done(ticket); }
  void start_sum(int group, int bucket, std::span<float> data) override {
    count();
    inner_->start_sum(group, bucket, data);
  }
  void await_sum(int group, int bucket) override { inner_->await_sum(group, bucket); }

 private:
  void count() {
    if (--left_ == 0) throw std::runtime_error("the cable is loose");
  }

  std::unique_ptr<comm::Endpoint> inner_;
  int left_;
};

// One process, in which one worker's endpoint breaks.
class BreakingProcess : public comm::Process {
 public:
  BreakingProcess(int worker, int breaks_at) : worker_(worker), breaks_at_(breaks_at) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  int size_on_host() const override { return 1; }
  std::unique_ptr<comm::Process> beside() override { return comm::make_local_process(); }
  void open(const comm::Topology& topology) override {
    num_workers_ = topology.num_workers;
    inner_->open(topology);
  }
  std::unique_ptr<comm::Endpoint> connect(int worker, backend::Memory& memory) override {
    auto endpoint = inner_->connect(worker, memory);
    if (worker != worker_) return endpoint;
    return std::make_unique<BreakingEndpoint>(std::move(endpoint), num_workers_, breaks_at_);
  }
  void tell(const comm::Event& event) override { inner_->tell(event); }
  std::optional<comm::Event> next_event(std::chrono::milliseconds wait) override { return inner_->next_event(wait); }
  void order(const comm::Order& order) override { inner_->order(order); }
  void grant(int64_t step) override { inner_->grant(step); }
  comm::OrderBook& orders() override { return inner_->orders(); }
  std::vector<std::string> gather(const std::string& text) override { return inner_->gather(text); }
  std::string broadcast(const std::string& text) override { return inner_->broadcast(text); }
  void abort() override { inner_->abort(); }

 private:
  std::unique_ptr<comm::Process> inner_ = comm::make_local_process();
  const int worker_, breaks_at_;
  int num_workers_ = 1;
};

// Longer than anyone would wait.
job::Job long_job(Mode mode, const std::string& placement) {
  job::Job job = small_job();
  job.steps = 1'000'000;
  job.parallel.mode = mode;
  job.parallel.placement = placement;
  return job;
}

void train(const job::Job& job, comm::Process& process, const Observer& observer = {}) {
  Training training(job, process, {});
  training.run(observer);
}

TEST(Failure, OfAWorkerEndsTheOthersAndNamesItsPlace) {
  job::Job job = long_job(Mode::OneFOneB, "0:0.0:1.1:4");
  job.parallel.microbatches = 4;
  BreakingProcess process(2, 30);  // four gradients a step: the second of the eighth
  EXPECT_THAT([&] { train(job, process); },
              ThrowsMessage<std::runtime_error>(AllOf(HasSubstr("worker 2 (1:4 on "), HasSubstr("stage 2, sending, "),
                                                      HasSubstr("micro-batch 29: the cable is loose"))));
}

TEST(Failure, OfAReplicaEndsTheOthers) {
  for (int worker : {0, 2}) {
    BreakingProcess process(worker, 5);
    EXPECT_THAT([&] { train(long_job(Mode::Dp, "0:0-2"), process); },
                ThrowsMessage<std::runtime_error>(
                    AllOf(HasSubstr(fmt::format("worker {} (0:{} on ", worker, worker)),
                          HasSubstr("stage 0, summing gradients, update 4: the cable is loose"))));
  }
}

TEST(Failure, OfAnAsynchronousWorkerEndsTheOthers) {
  for (int worker : {0, 1, 2}) {
    BreakingProcess process(worker, 20);
    EXPECT_THAT([&] { train(long_job(Mode::Ssp, "0:0.0:1.0:2"), process); },
                ThrowsMessage<std::runtime_error>(AllOf(HasSubstr(fmt::format("worker {} ", worker)),
                                                        HasSubstr(fmt::format("stage {}, sending", worker)))));
  }
}

// Also of a single worker, which waits for nobody.
TEST(Failure, OfTheObserverEndsTheWorkers) {
  Observer observer;
  observer.on_step = [](const StepReport& step) {
    if (step.step == 5) throw std::runtime_error("the disk is full");
  };
  for (const char* placement : {"0:0", "0:0-1"}) {
    const auto process = comm::make_local_process();
    EXPECT_THAT([&] { train(long_job(Mode::Dp, placement), *process, observer); },
                ThrowsMessage<std::runtime_error>("the disk is full"))
        << placement;
  }
}

TEST(Failure, DivergenceEndsTheWorkers) {
  for (const char* placement : {"0:0", "0:0.0:1"}) {
    job::Job job = long_job(std::string(placement) == "0:0" ? Mode::Dp : Mode::OneFOneB, placement);
    job.optimizer.lr = 1e9;
    const auto process = comm::make_local_process();
    Training training(job, *process, {});
    Observer observer;
    observer.stop_if_diverged = true;
    const TrainingResult result = training.run(observer);
    EXPECT_TRUE(result.diverged) << placement;
    EXPECT_LT(result.steps, 100);
  }
}

}  // namespace
}  // namespace millrace::runtime
