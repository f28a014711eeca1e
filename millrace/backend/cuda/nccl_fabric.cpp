// Every lane is a communicator of its own with a stream of its own, so that none waits for another's peers.
#include "millrace/backend/cuda/nccl_fabric.h"

#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/backend/cuda/host_calls.h"
#include "millrace/base/error.h"

namespace millrace::backend::cuda {
namespace {

// A sum goes piece by piece: large enough for the links' bandwidth, and what it takes of memory is bounded.
constexpr size_t kPieceFloats = size_t{4} << 20;
// Shares begin at multiples of 128 bytes, where copies are fastest.
constexpr size_t kShareFloats = 32;
// Thread blocks of a lane. They wait on the GPU for their peers, so those of all lanes have to fit beside each other.
constexpr int kPairBlocks = 8, kGroupBlocks = 16;
// Streams beyond these are the worker's, its outlet's and NCCL's.
constexpr int kOtherStreams = 4;
// A peer's death is known here before it is named; what names it comes first.
constexpr auto kTimeToName = std::chrono::seconds(20);

// The other end is gone: who it was, and why, others say better.
class PeerGone : public std::runtime_error {
 public:
  using runtime_error::runtime_error;
};

void check(ncclResult_t status, const char* call, ncclComm_t comm) {
  if (status == ncclSuccess) return;
  const char* said = ncclGetLastError(comm);
  const std::string text = fmt::format("NCCL: {}: {}{}{}; parallel.nccl: off goes through the host", call,
                                       ncclGetErrorString(status), said && *said ? ": " : "", said ? said : "");
  if (status == ncclRemoteError) throw PeerGone(text);
  fail_run("{}", text);
}
#define MILLRACE_NCCL(call, comm) check((call), #call, comm)

// Where a member's share of a piece begins.
size_t share_begin(size_t floats, size_t member, size_t members) {
  if (member == members) return floats;
  const size_t even = floats * member / members;
  return std::min(floats, (even + kShareFloats - 1) / kShareFloats * kShareFloats);
}

constexpr size_t largest_share(size_t members) { return kPieceFloats / members + 2 * kShareFloats; }

// As NCCL tells hosts apart, so that processes which are to count as being on several can be told to it alike.
std::string host_id() {
  if (const char* id = std::getenv("NCCL_HOSTID")) return id;
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return name + ("/" + boot);
}

class NcclFabric final : public Fabric {
 public:
  explicit NcclFabric(int device) : device_(device) {
    select();
    MILLRACE_CUDA(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device_));
    // One after another they get queues of their own. NCCL makes streams too, which it hardly uses, as it joins.
    int least = 0, most = 0;
    MILLRACE_CUDA(cudaDeviceGetStreamPriorityRange(&least, &most));
    spare_streams_.reserve(static_cast<size_t>(most_lanes()));
    for (int i = 0; i < most_lanes(); ++i) {
      MILLRACE_CUDA(cudaStreamCreateWithPriority(&spare_streams_.emplace_back(), cudaStreamNonBlocking, most));
    }
  }
  ~NcclFabric() override {
    if (std::uncaught_exceptions() > 0) abort();
    cudaSetDevice(device_);
    for (Lane& lane : lanes_) {
      if (lane.comm) ncclCommDestroy(lane.comm);
      if (lane.scratch) cudaFree(lane.scratch);
      cudaStreamDestroy(lane.stream);
    }
    for (const cudaStream_t stream : spare_streams_) cudaStreamDestroy(stream);
    for (const Flight& flight : flights_) cudaEventDestroy(flight.landed);
  }
  NcclFabric(const NcclFabric&) = delete;
  NcclFabric& operator=(const NcclFabric&) = delete;

  std::string name() const override {
    int version = 0;
    ncclGetVersion(&version);
    return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  }
  std::string device() const override {
    char place[32] = {};
    MILLRACE_CUDA(cudaDeviceGetPCIBusId(place, sizeof place, device_));
    return host_id() + "/" + place;
  }
  // Streams that share one of the GPU's queues wait for each other.
  int most_lanes() const override {
    const char* set = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    const int queues = set ? std::clamp(std::atoi(set), 1, 32) : 8;
    return std::max(0, queues - kOtherStreams);
  }

  Id make_id() override {
    static_assert(sizeof(ncclUniqueId) == sizeof(Id));
    ncclUniqueId own;
    MILLRACE_NCCL(ncclGetUniqueId(&own), nullptr);
    Id id;
    std::memcpy(id.data(), &own, sizeof own);
    return id;
  }

  // The first message connects the two, which waits for both: here, and not in the middle of a step.
  int join_pair(const Id& id, bool sends) override {
    const Measured measured(*this);
    const int number = join(id, sends ? 0 : 1, 2, kPairBlocks);
    Lane& lane = lanes_[number];
    MILLRACE_CUDA(cudaMalloc(&lane.scratch, kShareFloats * sizeof(float)));
    const int flight = sends ? send(number, lane.scratch, sizeof(float)) : receive(number, lane.scratch, sizeof(float));
    land(flight);
    return number;
  }

  int join_group(const Id& id, int member, int members) override {
    const Measured measured(*this);
    const int number = join(id, member, members, kGroupBlocks);
    Lane& lane = lanes_[number];
    const auto count = static_cast<size_t>(members);
    const size_t others = (count - 1) * largest_share(count), first = count * kShareFloats;
    MILLRACE_CUDA(cudaMalloc(&lane.scratch, (others + first) * sizeof(float)));
    MILLRACE_CUDA(cudaMemsetAsync(lane.scratch, 0, (others + first) * sizeof(float), lane.stream));
    land(sum(number, {lane.scratch + others, first}));
    return number;
  }

  int64_t memory_bytes() const override { return memory_bytes_; }

  int send(int pair, const void* data, size_t bytes) override {
    return fly(pair, [&](const Lane& lane) {
      MILLRACE_NCCL(ncclSend(data, bytes, ncclInt8, 1, lane.comm, lane.stream), lane.comm);
    });
  }
  int receive(int pair, void* data, size_t bytes) override {
    return fly(pair, [&](const Lane& lane) {
      MILLRACE_NCCL(ncclRecv(data, bytes, ncclInt8, 0, lane.comm, lane.stream), lane.comm);
    });
  }
  int sum(int group, std::span<float> data) override {
    return fly(group, [&](const Lane& lane) {
      for (size_t at = 0; at < data.size(); at += kPieceFloats) {
        sum_piece(lane, data.subspan(at, std::min(kPieceFloats, data.size() - at)));
      }
    });
  }

  bool done(int flight) override {
    select();
    if (!gone_.empty()) {  // nothing arrives any more
      await_naming(gone_);
      return false;
    }
    const cudaError_t status = cudaEventQuery(flights_[flight].landed);
    if (status == cudaErrorNotReady) {
      look_for_failure(lanes_[flights_[flight].lane].comm);
      return false;
    }
    MILLRACE_CUDA(status);
    free_.push_back(flight);
    return true;
  }

  void abort() override {
    cudaSetDevice(device_);
    for (Lane& lane : lanes_) {
      if (lane.comm) ncclCommAbort(std::exchange(lane.comm, nullptr));
    }
  }

 private:
  struct Lane {
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    int member = 0, members = 2;
    float* scratch = nullptr;  // of a group: the others' values of this member's share, one after another
  };
  struct Flight {
    cudaEvent_t landed = nullptr;
    int lane = 0;
  };

  // What is free before and after is of the whole device: other processes may be on it.
  class Measured {
   public:
    explicit Measured(NcclFabric& fabric) : fabric_(fabric), free_before_(free_bytes()) {}
    ~Measured() { fabric_.memory_bytes_ += std::max<int64_t>(0, free_before_ - free_bytes()); }

   private:
    static int64_t free_bytes() {
      size_t free = 0, total = 0;
      cudaMemGetInfo(&free, &total);
      return static_cast<int64_t>(free);
    }
    NcclFabric& fabric_;
    const int64_t free_before_;
  };

  // Each thread has a device of its own.
  void select() const { MILLRACE_CUDA(cudaSetDevice(device_)); }

  int join(const Id& id, int member, int members, int blocks) {
    select();
    if (spare_streams_.empty()) fail_run("more lanes than the {} that a GPU keeps apart", most_lanes());
    Lane& lane = lanes_.emplace_back();
    lane.stream = spare_streams_.back();
    spare_streams_.pop_back();
    lane.member = member;
    lane.members = members;
    ncclUniqueId unique;
    std::memcpy(&unique, id.data(), sizeof unique);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.maxCTAs = blocks;
    MILLRACE_NCCL(ncclCommInitRankConfig(&lane.comm, members, unique, member, &config), nullptr);
    return static_cast<int>(lanes_.size()) - 1;
  }

  template <typename Calls>
  int fly(int lane, Calls&& calls) {
    select();
    try {
      calls(lanes_[lane]);
    } catch (const PeerGone& gone) {
      gone_ = gone.what();
    }
    return depart(lane);
  }

  // The event that ends what was just called.
  int depart(int lane) {
    if (free_.empty()) {
      Flight& added = flights_.emplace_back();
      MILLRACE_CUDA(cudaEventCreateWithFlags(&added.landed, cudaEventDisableTiming));
      free_.reserve(flights_.capacity());
      free_.push_back(static_cast<int>(flights_.size()) - 1);
    }
    const int flight = free_.back();
    MILLRACE_CUDA(cudaEventRecord(flights_[flight].landed, lanes_[lane].stream));
    flights_[flight].lane = lane;
    free_.pop_back();
    return flight;
  }

  void land(int flight) {
    MILLRACE_CUDA(cudaStreamSynchronize(lanes_[flights_[flight].lane].stream));
    if (!gone_.empty()) fail_run("{}", gone_);
    free_.push_back(flight);
  }

  // A group that was begun is ended, whatever happens in it.
  template <typename Calls>
  void together(const Lane& lane, Calls&& calls) {
    MILLRACE_NCCL(ncclGroupStart(), lane.comm);
    std::exception_ptr failure;
    try {
      for (int m = 0; m < lane.members; ++m) {
        if (m != lane.member) calls(m);
      }
    } catch (...) {
      failure = std::current_exception();
    }
    const ncclResult_t status = ncclGroupEnd();
    if (failure) std::rethrow_exception(failure);
    check(status, "ncclGroupEnd()", lane.comm);
  }

  // NCCL's own sums add in an order of their own. Here each member adds one share, in the order of the members, and the
  // others get it; all of that lies in one stream, and the host waits for none of it.
  void sum_piece(const Lane& lane, std::span<float> piece) {
    const auto members = static_cast<size_t>(lane.members);
    const auto begin = [&](int m) { return share_begin(piece.size(), static_cast<size_t>(m), members); };
    const auto size = [&](int m) { return begin(m + 1) - begin(m); };
    float* own = piece.data() + begin(lane.member);
    const size_t floats = size(lane.member), pitch = (floats + kShareFloats - 1) / kShareFloats * kShareFloats;
    const auto send_to = [&](int m, const float* from, size_t count) {
      if (count > 0) MILLRACE_NCCL(ncclSend(from, count, ncclFloat, m, lane.comm, lane.stream), lane.comm);
    };
    const auto receive_from = [&](int m, float* to, size_t count) {
      if (count > 0) MILLRACE_NCCL(ncclRecv(to, count, ncclFloat, m, lane.comm, lane.stream), lane.comm);
    };
    together(lane, [&](int m) {
      send_to(m, piece.data() + begin(m), size(m));
      receive_from(m, lane.scratch + static_cast<size_t>(m < lane.member ? m : m - 1) * pitch, floats);
    });
    if (floats > 0) {
      const Device device{.stream = lane.stream, .multiprocessors = multiprocessors_};
      add_in_order(device, own, floats, lane.member, lane.scratch, pitch, lane.members);
    }
    together(lane, [&](int m) {
      send_to(m, own, floats);
      receive_from(m, piece.data() + begin(m), size(m));
    });
  }

  void look_for_failure(ncclComm_t comm) {
    ncclResult_t state = ncclSuccess;
    MILLRACE_NCCL(ncclCommGetAsyncError(comm, &state), comm);
    if (state == ncclSuccess || state == ncclInProgress) return;
    try {
      check(state, "waiting for what is under way", comm);
    } catch (const std::exception& failure) {
      await_naming(failure.what());
    }
  }

  void await_naming(const std::string& failure) {
    const auto now = std::chrono::steady_clock::now();
    if (failed_at_ == std::chrono::steady_clock::time_point{}) failed_at_ = now;
    if (now - failed_at_ > kTimeToName) fail_run("{}", failure);
  }

  const int device_;
  int multiprocessors_ = 1;
  std::vector<cudaStream_t> spare_streams_;
  std::vector<Lane> lanes_;
  std::vector<Flight> flights_;
  std::vector<int> free_;  // of flights_
  int64_t memory_bytes_ = 0;
  std::string gone_;  // what a call said of a peer that is gone
  std::chrono::steady_clock::time_point failed_at_;
};

}  // namespace

std::unique_ptr<Fabric> make_nccl_fabric(int device) { return std::make_unique<NcclFabric>(device); }

}  // namespace millrace::backend::cuda
