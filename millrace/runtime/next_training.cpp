#include "millrace/runtime/next_training.h"

#include <exception>
#include <stdexcept>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/comm/first_of_all.h"
#include "millrace/job/reader.h"

namespace millrace::runtime {
namespace {

// What process 0 tells the others: a step, then the job. Nothing: there will be none.
std::string to_text(int64_t boundary, const job::Job& job) { return fmt::format("{}\n{}", boundary, to_yaml(job)); }

// The first letter of a failure.
constexpr char kCannotBe = '2', kFailed = '1';

}  // namespace

// To join GPUs of several processes takes memory of each, for which the driver may wait until its kernels are done; and
// those of the training that runs wait for each other.
NextTraining::NextTraining(comm::Process& process, const MachineLimit& limit, std::shared_ptr<PrefixCaches> caches,
                           std::shared_future<void> former, bool uses_devices)
    : process_(process),
      limit_(limit),
      caches_(std::move(caches)),
      former_(std::move(former)),
      beside_(process.size() == 1 || !uses_devices) {
  if (process_.rank() != 0) future_ = std::async(when(), [this] { return follow(); });
}

NextTraining::~NextTraining() {
  if (std::uncaught_exceptions() > 0) process_.abort();
  try {
    stop();
  } catch (const std::exception&) {  // the run has failed, and says why
  }
}

void NextTraining::begin(std::shared_future<NextPlan> plan, int64_t boundary,
                         std::shared_ptr<const PrefixCache> cache) {
  plan_ = plan;
  future_ = std::async(when(), [this, plan = std::move(plan), boundary, cache = std::move(cache)] {
    return lead(plan, boundary, cache);
  });
}

void NextTraining::await() {
  plan_.get();
  if (beside_) made_ = future_.get();
}

NextTraining::Made NextTraining::take() {
  taken_ = true;
  return made_.training ? std::move(made_) : future_.get();
}

NextTraining::Made NextTraining::lead(const std::shared_future<NextPlan>& plan, int64_t boundary,
                                      std::shared_ptr<const PrefixCache> cache) {
  const job::Job& job = plan.get().job;
  process_.broadcast(to_text(boundary, job));
  return make(job, std::move(cache));
}

NextTraining::Made NextTraining::follow() {
  for (;;) {
    const std::string text = process_.broadcast({});
    if (text.empty()) return {};
    const size_t line = text.find('\n');
    const job::Job job = job::parse_job(text.substr(line + 1), "plan", {});
    Made made = make(job, caches_ ? caches_->next(job.model.frozen, std::stoll(text.substr(0, line))) : nullptr);
    if (made.training) return made;
    if (!beside_) throw comm::Aborted();  // process 0 ends the run
  }
}

NextTraining::Made NextTraining::make(const job::Job& job, std::shared_ptr<const PrefixCache> cache) {
  if (former_.valid()) former_.wait();
  Made made{job, nullptr};
  std::string failure;
  try {
    made.training = std::make_unique<Training>(job, process_, limit_, OnMeasure(), StateReader(), Parameters::Later,
                                               std::move(cache));
  } catch (const std::invalid_argument& error) {
    failure = kCannotBe + std::string(error.what());
  } catch (const std::exception& error) {
    failure = kFailed + std::string(error.what());
  }
  const std::string first = comm::first_of_all(process_, failure);
  if (first.empty()) return made;
  made.training.reset();
  if (process_.rank() != 0) return made;
  if (first[0] == kCannotBe) throw std::invalid_argument(first.substr(1));
  throw std::runtime_error(first.substr(1));
}

// The others wait for a job, or have made what nobody takes.
void NextTraining::stop() {
  if (taken_ || !beside_) return;
  if (process_.rank() != 0) {
    future_.get();
    return;
  }
  try {
    if (future_.valid()) made_ = future_.get();
  } catch (const std::exception&) {  // there will be no boundary to say so at
  }
  if (!made_.training) process_.broadcast({});
}

}  // namespace millrace::runtime
