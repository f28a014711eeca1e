// Sums gradients over the replicas of a stage by messages, piece by piece: each member adds one share of a piece, in
// the order of the members, and sends it to the others. So the result has the same bits whatever the transport, and
// each member sends 2 (n - 1) / n of the bytes, as a ring would.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "millrace/comm/endpoint.h"

namespace millrace::comm {

class SumEngine {
 public:
  SumEngine(MPI_Comm comm, const Topology& topology, int worker);
  ~SumEngine();

  // From the worker's thread.
  void start(int group, int bucket, std::span<float> data);
  bool done(int group, int bucket) const;  // all sums that were started
  double transfer_s() const { return transfer_s_.load(std::memory_order_relaxed); }

  // From the thread that serves: moves what can move; says whether anything is under way.
  bool advance();

 private:
  // One piece under way. `added` follows once every member's share for us is here.
  struct Piece {
    enum class Phase { Idle, Scatter, Gather } phase = Phase::Idle;
    int group = 0;
    int counter = -1;  // the bucket whose last piece this is, or -1
    int tag = 0;
    std::span<float> data;
    std::vector<float> scratch;  // other members' values of our share
    std::vector<MPI_Request> requests;
    std::chrono::steady_clock::time_point start;
  };
  struct Waiting {
    int group = 0;
    int counter = -1;
    std::span<float> data;
  };

  std::span<float> share(const Piece& piece, size_t member) const;
  void begin(Piece& piece, const Waiting& work);
  void add(Piece& piece);
  bool poll(Piece& piece);
  std::atomic<uint32_t>& counter(int index) { return finished_[static_cast<size_t>(index)]; }

  MPI_Comm comm_;
  const Topology& topology_;
  std::vector<int> member_;         // per group: which this worker is; -1: none
  std::vector<int> first_counter_;  // per group: of its buckets
  std::vector<uint32_t> started_;   // per bucket, by the worker
  std::vector<std::atomic<uint32_t>> finished_;
  std::vector<uint32_t> pieces_begun_;  // per group: names the messages of a piece
  std::mutex mutex_;
  std::deque<Waiting> waiting_;
  std::vector<Piece> pieces_;
  std::atomic<double> transfer_s_{0};
};

}  // namespace millrace::comm
