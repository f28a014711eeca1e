#include "millrace/comm/device_endpoint.h"

#include <algorithm>
#include <array>
#include <utility>

#include "millrace/base/error.h"

namespace millrace::comm {
namespace {

double seconds_between(std::chrono::steady_clock::time_point start, std::chrono::steady_clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

}  // namespace

DeviceEndpoint::DeviceEndpoint(const Topology& topology, backend::Memory& memory,
                               std::unique_ptr<backend::Fabric> fabric, std::unique_ptr<Sideband> sideband,
                               std::unique_ptr<Endpoint> host)
    : Endpoint(host->worker(), topology.num_workers),
      topology_(topology),
      memory_(memory),
      host_(std::move(host)),
      fabric_(std::move(fabric)),
      sideband_(std::move(sideband)),
      lane_to_(topology.num_workers, -1),
      lane_from_(topology.num_workers, -1),
      ends_(2 * static_cast<size_t>(topology.num_tags)) {
  flying_.reserve(ends_.size());
  join();
}

// Nothing may be left in a lane that its memory would be taken away from.
DeviceEndpoint::~DeviceEndpoint() {
  if (std::uncaught_exceptions() > 0 || open_ends_ > 0 || sums_flying_ > 0) abort();
}

// In the order of the topology, which is everyone's.
void DeviceEndpoint::join() {
  for (const auto& [from, to] : topology_.pairs) {
    if (from == to || (worker_ != from && worker_ != to)) continue;
    backend::Fabric::Id id{};
    if (worker_ == from) id = fabric_->make_id();
    sideband_->share(id, std::array{from, to});
    (worker_ == from ? lane_to_[to] : lane_from_[from]) = fabric_->join_pair(id, worker_ == from);
  }
  for (const Group& group : topology_.groups) {
    SumGroup& added = groups_.emplace_back();
    const auto member = std::find(group.workers.begin(), group.workers.end(), worker_);
    if (member == group.workers.end() || group.buckets == 0 || group.on_host) continue;
    added.sums.resize(group.buckets);
    if (group.workers.size() == 1) continue;
    backend::Fabric::Id id{};
    if (member == group.workers.begin()) id = fabric_->make_id();
    sideband_->share(id, group.workers);
    added.lane = fabric_->join_group(id, static_cast<int>(member - group.workers.begin()),
                                     static_cast<int>(group.workers.size()));
  }
}

void DeviceEndpoint::check() const {
  if (failure_) std::rethrow_exception(failure_);
  if (aborted_) throw Aborted();
}

DeviceEndpoint::End& DeviceEndpoint::open(size_t at, int peer, void* data, size_t bytes) {
  End& end = ends_[at];
  if (end.state != End::State::Free) fail_run("message {} is opened again while it is under way", at / 2);
  end.state = End::State::Called;
  end.peer = peer;
  end.data = data;
  end.bytes = bytes;
  ++open_ends_;
  return end;
}

Ticket DeviceEndpoint::receive(int from, int tag, void* data, size_t bytes) {
  const std::lock_guard lock(mutex_);
  check();
  open(incoming(tag), from, data, bytes);
  if (from == worker_) {
    pass_to_itself(tag);
  } else {
    sideband_->tell(from, {Notice::Kind::Ready, tag, static_cast<int64_t>(bytes)});
  }
  return {static_cast<int>(incoming(tag)), 0};
}

Ticket DeviceEndpoint::send(int to, int tag, const void* data, size_t bytes) {
  const std::lock_guard lock(mutex_);
  check();
  open(outgoing(tag), to, const_cast<void*>(data), bytes);
  bytes_sent_[to] += static_cast<int64_t>(bytes);
  if (to == worker_) {
    pass_to_itself(tag);
  } else {
    pump();  // it may have become ready just now
    if (ends_[outgoing(tag)].state == End::State::Called && ends_[outgoing(tag)].ready) start_send(tag);
  }
  return {static_cast<int>(outgoing(tag)), 0};
}

// Between two stages of one worker.
void DeviceEndpoint::pass_to_itself(int tag) {
  End &in = ends_[incoming(tag)], &out = ends_[outgoing(tag)];
  if (in.state != End::State::Called || out.state != End::State::Called) return;
  const auto start = Clock::now();
  memory_.copy(in.data, out.data, out.bytes);
  new_message_s_ += seconds_between(start, Clock::now());
  new_message_bytes_ += out.bytes;
  in.state = out.state = End::State::Arrived;
}

bool DeviceEndpoint::done(const Ticket& ticket) {
  const std::lock_guard lock(mutex_);
  check();
  End& end = ends_[ticket.place];
  if (end.state != End::State::Arrived) pump();
  if (end.state != End::State::Arrived) return false;
  end.state = End::State::Free;
  --open_ends_;
  take_counts();
  return true;
}

bool DeviceEndpoint::advance() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || aborted_ || failure_) return false;
  try {
    pump();
  } catch (...) {
    failure_ = std::current_exception();
  }
  return open_ends_ > 0 || sums_flying_ > 0;
}

void DeviceEndpoint::abort() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(aborted_, true)) return;
  fabric_->abort();
}

void DeviceEndpoint::pump() {
  for (Notice notice; sideband_->next(notice);) take(notice);
  look_after_messages();
  if (sums_flying_ > 0) look_after_sums();
}

void DeviceEndpoint::take(const Notice& notice) {
  if (notice.kind == Notice::Kind::Ready) {
    End& end = ends_[outgoing(notice.tag)];
    end.ready = true;
    end.ready_bytes = notice.bytes;
    if (end.state == End::State::Called) start_send(notice.tag);
    return;
  }
  End& end = ends_[incoming(notice.tag)];
  if (end.state != End::State::Called) fail_run("message {} came and nobody asked for it", notice.tag);
  check_size(notice.tag, end.bytes, notice.bytes);
  end.flight = fabric_->receive(lane_from_[end.peer], end.data, end.bytes);
  end.state = End::State::Flying;
  flying_.push_back(static_cast<int>(incoming(notice.tag)));
}

void DeviceEndpoint::start_send(int tag) {
  End& end = ends_[outgoing(tag)];
  check_size(tag, end.bytes, end.ready_bytes);
  if (lane_to_[end.peer] < 0) fail_run("no messages were announced from worker {} to {}", worker_, end.peer);
  end.ready = false;
  end.start = Clock::now();
  sideband_->tell(end.peer, {Notice::Kind::Going, tag, static_cast<int64_t>(end.bytes)});
  end.flight = fabric_->send(lane_to_[end.peer], end.data, end.bytes);
  end.state = End::State::Flying;
  flying_.push_back(static_cast<int>(outgoing(tag)));
}

// A lane would wait for the rest for ever, or take it for the next message.
void DeviceEndpoint::check_size(int tag, size_t bytes, int64_t expected) const {
  if (static_cast<int64_t>(bytes) == expected) return;
  fail_run("message {} has {} bytes here and {} at the other end", tag, bytes, expected);
}

void DeviceEndpoint::look_after_messages() {
  for (size_t i = 0; i < flying_.size();) {
    End& end = ends_[flying_[i]];
    if (!fabric_->done(end.flight)) {
      ++i;
      continue;
    }
    end.state = End::State::Arrived;
    if (static_cast<size_t>(flying_[i]) == outgoing(flying_[i] / 2)) {
      new_message_s_ += seconds_between(end.start, Clock::now());
      new_message_bytes_ += end.bytes;
    }
    flying_[i] = flying_.back();
    flying_.pop_back();
  }
}

void DeviceEndpoint::look_after_sums() {
  for (SumGroup& group : groups_) {
    for (Sum& sum : group.sums) {
      if (sum.state != Sum::State::Flying || !fabric_->done(sum.flight)) continue;
      sum.state = Sum::State::Arrived;
      --sums_flying_;
      // One begins when the one before it has come.
      const auto now = Clock::now();
      new_sum_s_ += seconds_between(std::max(sum.start, group.free), now);
      group.free = now;
    }
  }
}

void DeviceEndpoint::start_sum(int group, int bucket, std::span<float> data) {
  const auto& workers = topology_.groups[group].workers;
  const auto members = static_cast<int64_t>(workers.size());
  for (const int worker : workers) {
    if (worker != worker_) bytes_sent_[worker] += 2 * static_cast<int64_t>(data.size_bytes()) / members;
  }
  if (topology_.groups[group].on_host) return host_->start_sum(group, bucket, data);
  const std::lock_guard lock(mutex_);
  check();
  SumGroup& own = groups_[group];
  Sum& sum = own.sums[bucket];
  if (sum.state != Sum::State::Free)
    fail_run("bucket {} of group {} is summed again before it was awaited", bucket, group);
  if (own.lane < 0) {
    sum.state = Sum::State::Arrived;
    return;
  }
  sum.start = Clock::now();
  sum.flight = fabric_->sum(own.lane, data);
  sum.state = Sum::State::Flying;
  ++sums_flying_;
}

void DeviceEndpoint::await_sum(int group, int bucket) {
  if (topology_.groups[group].on_host) {
    const double before_s = host_->transfer_s();
    host_->await_sum(group, bucket);
    transfer_s_ += host_->transfer_s() - before_s;
    return;
  }
  wait_until([&] {
    const std::lock_guard lock(mutex_);
    check();
    Sum& sum = groups_[group].sums[bucket];
    if (sum.state == Sum::State::Flying) pump();
    if (sum.state == Sum::State::Flying) return false;
    sum.state = Sum::State::Free;
    take_counts();
    return true;
  });
}

void DeviceEndpoint::take_counts() {
  count_message(std::exchange(new_message_s_, 0), std::exchange(new_message_bytes_, 0));
  transfer_s_ += std::exchange(new_sum_s_, 0);
}

}  // namespace millrace::comm
