#include "millrace/comm/mpi/mpi_process.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/comm/device_endpoint.h"
#include "millrace/comm/mpi/check.h"
#include "millrace/comm/mpi/joining.h"
#include "millrace/comm/mpi/mpi_sideband.h"
#include "millrace/comm/staged_endpoint.h"

namespace millrace::comm {
namespace {

constexpr size_t kLargestMessage = 1 << 30;  // MPI counts in int
constexpr double kTimeToJoin_s = 10;         // after which others are not waited for

}  // namespace

// Sends and receives are MPI's own; the requests are kept in places that are used again.
class MpiEndpoint : public Endpoint {
 public:
  MpiEndpoint(MpiProcess& process, int worker)
      : Endpoint(worker, process.topology_.num_workers),
        process_(process),
        places_(2 * process.topology_.num_tags + 1) {
    for (size_t i = 0; i < places_.size(); ++i) free_.push_back(static_cast<int>(i));
    leaving_.reserve(places_.size());
    const std::lock_guard lock(process_.sends_mutex_);
    process_.endpoint_ = this;
  }
  ~MpiEndpoint() override {
    const std::lock_guard lock(process_.sends_mutex_);
    process_.endpoint_ = nullptr;
  }

  Ticket receive(int from, int tag, void* data, size_t bytes) override {
    const int at = take();
    check_mpi(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, tag, process_.messages_, &places_[at].request),
              "opening a receive");
    return {at, 0};
  }

  Ticket send(int to, int tag, const void* data, size_t bytes) override {
    const int at = take();
    bytes_sent_[to] += static_cast<int64_t>(bytes);
    const std::lock_guard lock(process_.sends_mutex_);
    places_[at].sends = true;
    places_[at].bytes = bytes;
    places_[at].start = std::chrono::steady_clock::now();
    check_mpi(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, tag, process_.messages_, &places_[at].request),
              "sending");
    leaving_.push_back(at);
    return {at, 0};
  }

  bool done(const Ticket& ticket) override {
    Place& place = places_[ticket.place];
    int complete = 0;
    if (place.sends) {
      const std::lock_guard lock(process_.sends_mutex_);
      look_after_sends();
      complete = place.request == MPI_REQUEST_NULL ? 1 : 0;
    } else {
      check_mpi(MPI_Test(&place.request, &complete, MPI_STATUS_IGNORE), "waiting for a message");
    }
    if (complete == 0) {
      process_.check_abort();
      return false;
    }
    place.sends = false;
    free_.push_back(ticket.place);
    return true;
  }

  // Under sends_mutex_, from the worker's thread and the one that serves: so that a message's end is seen when it
  // comes, not when someone waits for it.
  void look_after_sends() {
    for (size_t i = 0; i < leaving_.size();) {
      Place& place = places_[leaving_[i]];
      int complete = 0;
      MPI_Test(&place.request, &complete, MPI_STATUS_IGNORE);
      if (complete == 0) {
        ++i;
        continue;
      }
      count_message(std::chrono::duration<double>(std::chrono::steady_clock::now() - place.start).count(), place.bytes);
      leaving_[i] = leaving_.back();
      leaving_.pop_back();
    }
  }

  void start_sum(int group, int bucket, std::span<float> data) override {
    const auto members = static_cast<int64_t>(process_.topology_.groups[group].workers.size());
    for (int worker : process_.topology_.groups[group].workers) {
      if (worker != worker_) bytes_sent_[worker] += 2 * static_cast<int64_t>(data.size_bytes()) / members;
    }
    process_.sum_engine_->start(group, bucket, data);
  }

  void await_sum(int group, int bucket) override {
    wait_until([&] {
      if (process_.sum_engine_->done(group, bucket)) return true;
      process_.check_abort();
      return false;
    });
    const std::lock_guard lock(process_.sends_mutex_);
    transfer_s_ += process_.sum_engine_->transfer_s() - counted_sum_s_;
    counted_sum_s_ = process_.sum_engine_->transfer_s();
  }

 private:
  struct Place {
    MPI_Request request = MPI_REQUEST_NULL;
    bool sends = false;
    size_t bytes = 0;
    std::chrono::steady_clock::time_point start;
  };

  int take() {
    if (free_.empty()) fail_run("more messages under way than there are names for");
    const int at = free_.back();
    free_.pop_back();
    return at;
  }

  MpiProcess& process_;
  std::vector<Place> places_;
  std::vector<int> free_;
  std::vector<int> leaving_;  // sends under way
  double counted_sum_s_ = 0;
};

// Known to the process while it lives, so that messages move on, and end, whatever the worker does.
class MpiDeviceEndpoint final : public DeviceEndpoint {
 public:
  MpiDeviceEndpoint(MpiProcess& process, int worker, backend::Memory& memory, std::unique_ptr<backend::Fabric> fabric)
      : DeviceEndpoint(process.topology_, memory, std::move(fabric),
                       std::make_unique<MpiSideband>(process.notices_, most_notices(process.topology_)),
                       std::make_unique<MpiEndpoint>(process, worker)),
        process_(process) {
    const std::lock_guard lock(process_.sends_mutex_);
    process_.device_endpoint_ = this;
  }
  ~MpiDeviceEndpoint() override {
    const std::lock_guard lock(process_.sends_mutex_);
    process_.device_endpoint_ = nullptr;
  }

 private:
  // One of each kind for each message.
  static size_t most_notices(const Topology& topology) { return 2 * static_cast<size_t>(topology.num_tags); }

  MpiProcess& process_;
};

MpiProcess::MpiProcess(std::shared_ptr<MpiWorld> world, bool is_first) : world_(std::move(world)), is_first_(is_first) {
  for (MPI_Comm* comm : {&messages_, &sums_, &events_, &orders_comm_, &control_, &notices_})
    MPI_Comm_dup(MPI_COMM_WORLD, comm);
  if (rank() == 0) {
    MPI_Irecv(&incoming_->event, sizeof(Event), MPI_BYTE, MPI_ANY_SOURCE, 0, events_, &incoming_request_);
  } else {
    MPI_Irecv(&incoming_->directive, sizeof(Directive), MPI_BYTE, 0, 0, orders_comm_, &directive_request_);
  }
  world_->add(*this);
}

MpiProcess::~MpiProcess() {
  const bool failed = world_->aborted() || std::uncaught_exceptions() > 0;
  if (is_first_ && !failed) wait_for_all();
  world_->remove(*this);
  if (failed) {
    (void)incoming_.release();
    return;
  }
  for (MPI_Request* request : {&incoming_request_, &directive_request_}) {
    if (*request == MPI_REQUEST_NULL) continue;
    MPI_Cancel(request);
    MPI_Wait(request, MPI_STATUS_IGNORE);
  }
}

// Asleep: MPI_Barrier would keep a core busy for as long as process 0 writes its files.
void MpiProcess::wait_for_all() {
  MPI_Request barrier = MPI_REQUEST_NULL;
  MPI_Ibarrier(control_, &barrier);
  for (int complete = 0; !complete;) {
    MPI_Test(&barrier, &complete, MPI_STATUS_IGNORE);
    if (!complete) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// A number on its way from another process. What is soon there is not waited for asleep; for what takes longer no core
// is kept busy.
uint64_t MpiProcess::await_number(uint64_t own, const std::function<void(uint64_t*, MPI_Request*)>& start) {
  constexpr auto kSoon = std::chrono::milliseconds(2);
  auto number = std::make_unique<uint64_t>(own);
  MPI_Request request = MPI_REQUEST_NULL;
  start(number.get(), &request);
  const auto began = std::chrono::steady_clock::now();
  for (int complete = 0;;) {
    check_mpi(MPI_Test(&request, &complete, MPI_STATUS_IGNORE), "waiting for the other processes");
    if (complete) return *number;
    if (world_->aborted()) {
      (void)number.release();  // it may still come
      throw Aborted();
    }
    if (std::chrono::steady_clock::now() - began > kSoon) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void MpiProcess::open(const Topology& topology) {
  const std::lock_guard lock(sums_mutex_);
  sum_engine_.reset();
  topology_ = topology;
  sum_engine_ = std::make_unique<SumEngine>(sums_, topology_, rank());
}

std::unique_ptr<Endpoint> MpiProcess::connect(int worker, backend::Memory& memory) {
  if (memory.on_host()) return std::make_unique<MpiEndpoint>(*this, worker);
  std::string reason;
  if (auto joined = join_devices(worker, memory, reason)) return joined;
  return std::make_unique<StagedEndpoint>(std::make_unique<MpiEndpoint>(*this, worker), topology_.num_workers, memory,
                                          reason);
}

// Null, and why, if that cannot be for all.
std::unique_ptr<Endpoint> MpiProcess::join_devices(int worker, backend::Memory& memory, std::string& reason) {
  std::unique_ptr<backend::Fabric> fabric;
  std::string failure;
  try {
    if (topology_.joins_devices) fabric = memory.make_fabric();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  reason = reason_not_to_join(notices_, topology_, fabric.get(), failure);
  if (!reason.empty()) return nullptr;
  std::unique_ptr<MpiDeviceEndpoint> endpoint;
  try {
    endpoint = std::make_unique<MpiDeviceEndpoint>(*this, worker, memory, std::move(fabric));
  } catch (const std::exception& error) {
    failure = *error.what() ? error.what() : "failed";
  }
  const std::optional<std::string> first = first_failure(notices_, failure, kTimeToJoin_s);
  if (!first) end_unjoined(failure);
  reason = *first;
  if (reason.empty()) return endpoint;
  if (endpoint) endpoint->abort();
  return nullptr;
}

// Others wait for this process inside the library that was to join them, where nothing else reaches them.
void MpiProcess::end_unjoined(const std::string& failure) {
  world_->stop();
  fmt::print(stderr, "\nmillrace: worker {} on {} could not be joined to the others: {}\n", rank(), host_name(),
             failure);
  std::fflush(stderr);
  world_->say_goodbye();
  MPI_Abort(MPI_COMM_WORLD, 1);
  _exit(1);
}

void MpiProcess::decline_to_join() { tell_of_failure(notices_); }

bool MpiProcess::serve() {
  bool busy = false;
  {
    const std::lock_guard lock(sums_mutex_);
    busy = sum_engine_ && sum_engine_->advance();
  }
  {
    const std::lock_guard lock(sends_mutex_);
    if (endpoint_) endpoint_->look_after_sends();
    if (device_endpoint_) busy |= device_endpoint_->advance();
  }
  take_events();
  take_orders();
  return busy;
}

void MpiProcess::take_events() {
  if (incoming_request_ == MPI_REQUEST_NULL) return;
  for (;;) {
    int complete = 0;
    MPI_Test(&incoming_request_, &complete, MPI_STATUS_IGNORE);
    if (!complete) return;
    take_event(incoming_->event);
    MPI_Irecv(&incoming_->event, sizeof(Event), MPI_BYTE, MPI_ANY_SOURCE, 0, events_, &incoming_request_);
  }
}

void MpiProcess::take_event(const Event& event) {
  const std::lock_guard lock(mutex_);
  queue_.push_back(event);
  queue_.back().at = std::chrono::steady_clock::now();
  changed_.notify_one();
}

void MpiProcess::tell(const Event& event) {
  check_abort();
  if (rank() == 0) return take_event(event);
  check_mpi(MPI_Send(&event, sizeof event, MPI_BYTE, 0, 0, events_), "telling process 0");
}

std::optional<Event> MpiProcess::next_event(std::chrono::milliseconds wait) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, wait, [&] { return !queue_.empty() || world_->aborted(); });
  if (queue_.empty()) {
    check_abort();
    return std::nullopt;
  }
  const Event event = queue_.front();
  queue_.pop_front();
  return event;
}

// One after another from process 0, which is what keeps a grant behind the orders it came after.
void MpiProcess::take_orders() {
  if (directive_request_ == MPI_REQUEST_NULL) return;
  for (;;) {
    int complete = 0;
    MPI_Test(&directive_request_, &complete, MPI_STATUS_IGNORE);
    if (!complete) return;
    if (incoming_->directive.is_grant) {
      orders_.grant(incoming_->directive.granted);
    } else {
      orders_.add(incoming_->directive.order);
    }
    MPI_Irecv(&incoming_->directive, sizeof(Directive), MPI_BYTE, 0, 0, orders_comm_, &directive_request_);
  }
}

void MpiProcess::send_directive(const Directive& directive) {
  for (int r = 1; r < size(); ++r) {
    check_mpi(MPI_Send(&directive, sizeof directive, MPI_BYTE, r, 0, orders_comm_), "giving an order");
  }
}

void MpiProcess::order(const Order& order) {
  check_abort();
  Directive directive;
  directive.order = order;
  send_directive(directive);
  orders_.add(order);
}

void MpiProcess::grant(int64_t step) {
  check_abort();
  Directive directive;
  directive.is_grant = true;
  directive.granted = step;
  send_directive(directive);
  orders_.grant(step);
}

std::vector<std::string> MpiProcess::gather(const std::string& text) {
  if (rank() != 0) {
    const uint64_t bytes = text.size();
    MPI_Send(&bytes, 1, MPI_UINT64_T, 0, 1, control_);
    send(0, std::as_bytes(std::span(text)));
    return {};
  }
  std::vector<std::string> texts{text};
  for (int r = 1; r < size(); ++r) {
    const uint64_t bytes = await_number(0, [&](uint64_t* number, MPI_Request* request) {
      MPI_Irecv(number, 1, MPI_UINT64_T, r, 1, control_, request);
    });
    receive(r, std::as_writable_bytes(std::span(texts.emplace_back(bytes, '\0'))));
  }
  return texts;
}

void MpiProcess::send(int to, std::span<const std::byte> bytes) {
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(kLargestMessage, bytes.size()))) {
    MPI_Send(bytes.data(), static_cast<int>(std::min(kLargestMessage, bytes.size())), MPI_BYTE, to, 1, control_);
  }
}

void MpiProcess::receive(int from, std::span<std::byte> bytes) {
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(kLargestMessage, bytes.size()))) {
    MPI_Recv(bytes.data(), static_cast<int>(std::min(kLargestMessage, bytes.size())), MPI_BYTE, from, 1, control_,
             MPI_STATUS_IGNORE);
  }
}

std::string MpiProcess::broadcast(const std::string& text) {
  const uint64_t bytes = await_number(text.size(), [&](uint64_t* number, MPI_Request* request) {
    MPI_Ibcast(number, 1, MPI_UINT64_T, 0, control_, request);
  });
  std::string copy = text;
  copy.resize(bytes);
  for (size_t at = 0; at < bytes; at += kLargestMessage) {
    MPI_Bcast(copy.data() + at, static_cast<int>(std::min(kLargestMessage, bytes - at)), MPI_BYTE, 0, control_);
  }
  return copy;
}

void MpiProcess::wake() {
  orders_.abort();
  {
    const std::lock_guard lock(sends_mutex_);
    if (device_endpoint_) device_endpoint_->abort();  // or its memory could never be given back
  }
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

std::unique_ptr<Process> make_mpi_process() { return std::make_unique<MpiProcess>(); }

void end_failed_process(int exit_code) {
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized && !finalized) MPI_Abort(MPI_COMM_WORLD, exit_code);
}

}  // namespace millrace::comm
