#include "millrace/comm/mpi/sum_engine.h"

#include <algorithm>
#include <cstring>

namespace millrace::comm {
namespace {

// Large enough for a network's bandwidth, small enough that adding one piece hides behind sending another.
constexpr size_t kPieceFloats = 1 << 20;
constexpr size_t kPiecesUnderWay = 4;
constexpr int kTagsPerGroup = 1024;

}  // namespace

SumEngine::SumEngine(MPI_Comm comm, const Topology& topology, int worker) : comm_(comm), topology_(topology) {
  int counters = 0;
  size_t most_members = 1;
  for (const Group& group : topology.groups) {
    const auto found = std::find(group.workers.begin(), group.workers.end(), worker);
    member_.push_back(found == group.workers.end() ? -1 : static_cast<int>(found - group.workers.begin()));
    first_counter_.push_back(counters);
    counters += group.buckets;
    if (member_.back() >= 0 && group.buckets > 0) most_members = std::max(most_members, group.workers.size());
  }
  started_.assign(counters, 0);
  finished_ = std::vector<std::atomic<uint32_t>>(counters);
  pieces_begun_.assign(topology.groups.size(), 0);
  if (most_members == 1) return;
  pieces_.resize(kPiecesUnderWay);
  for (Piece& piece : pieces_) {
    piece.scratch.resize((kPieceFloats / most_members + 1) * most_members);
    piece.requests.reserve(2 * most_members);
  }
}

SumEngine::~SumEngine() = default;

void SumEngine::start(int group, int bucket, std::span<float> data) {
  const int counter = first_counter_[group] + bucket;
  ++started_[counter];
  const std::lock_guard lock(mutex_);
  for (size_t at = 0; at < data.size(); at += kPieceFloats) {
    const size_t floats = std::min(kPieceFloats, data.size() - at);
    waiting_.push_back({group, at + floats == data.size() ? counter : -1, data.subspan(at, floats)});
  }
}

bool SumEngine::done(int group, int bucket) const {
  const auto counter = static_cast<size_t>(first_counter_[group] + bucket);
  return finished_[counter].load(std::memory_order_acquire) == started_[counter];
}

std::span<float> SumEngine::share(const Piece& piece, size_t member) const {
  const size_t members = topology_.groups[piece.group].workers.size(), floats = piece.data.size();
  const size_t begin = floats * member / members, end = floats * (member + 1) / members;
  return piece.data.subspan(begin, end - begin);
}

void SumEngine::begin(Piece& piece, const Waiting& work) {
  const auto& workers = topology_.groups[work.group].workers;
  const auto me = static_cast<size_t>(member_[work.group]);
  piece.phase = Piece::Phase::Scatter;
  piece.group = work.group;
  piece.counter = work.counter;
  piece.data = work.data;
  piece.tag = (work.group * kTagsPerGroup + static_cast<int>(pieces_begun_[work.group]++ % (kTagsPerGroup / 2)) * 2);
  piece.start = std::chrono::steady_clock::now();
  piece.requests.clear();
  const size_t own = share(piece, me).size();
  for (size_t m = 0; m < workers.size(); ++m) {
    if (m == me) continue;
    MPI_Irecv(piece.scratch.data() + m * own, static_cast<int>(own), MPI_FLOAT, workers[m], piece.tag, comm_,
              &piece.requests.emplace_back());
  }
  for (size_t m = 0; m < workers.size(); ++m) {
    if (m == me) continue;
    const std::span<float> theirs = share(piece, m);
    MPI_Isend(theirs.data(), static_cast<int>(theirs.size()), MPI_FLOAT, workers[m], piece.tag, comm_,
              &piece.requests.emplace_back());
  }
}

// In the order of the members, whoever we are.
void SumEngine::add(Piece& piece) {
  const auto& workers = topology_.groups[piece.group].workers;
  const auto me = static_cast<size_t>(member_[piece.group]);
  const std::span<float> own = share(piece, me);
  auto values = [&](size_t m) { return m == me ? own.data() : piece.scratch.data() + m * own.size(); };
  for (size_t m = 1; m < workers.size(); ++m) {
    // The sum so far is in the first member's place, or in ours once we were added.
    float* total = m > me ? own.data() : values(0);
    if (m == me) {
      for (size_t i = 0; i < own.size(); ++i) own[i] = total[i] + own[i];
    } else {
      const float* part = values(m);
      for (size_t i = 0; i < own.size(); ++i) total[i] += part[i];
    }
  }
  piece.phase = Piece::Phase::Gather;
  piece.requests.clear();
  for (size_t m = 0; m < workers.size(); ++m) {
    if (m == me) continue;
    const std::span<float> theirs = share(piece, m);
    MPI_Irecv(theirs.data(), static_cast<int>(theirs.size()), MPI_FLOAT, workers[m], piece.tag + 1, comm_,
              &piece.requests.emplace_back());
  }
  for (size_t m = 0; m < workers.size(); ++m) {
    if (m == me) continue;
    MPI_Isend(own.data(), static_cast<int>(own.size()), MPI_FLOAT, workers[m], piece.tag + 1, comm_,
              &piece.requests.emplace_back());
  }
}

bool SumEngine::poll(Piece& piece) {
  int complete = 0;
  MPI_Testall(static_cast<int>(piece.requests.size()), piece.requests.data(), &complete, MPI_STATUSES_IGNORE);
  if (!complete) return false;
  if (piece.phase == Piece::Phase::Scatter) {
    add(piece);
    return true;
  }
  piece.phase = Piece::Phase::Idle;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - piece.start).count();
  transfer_s_.store(transfer_s_.load(std::memory_order_relaxed) + seconds / static_cast<double>(kPiecesUnderWay),
                    std::memory_order_relaxed);
  if (piece.counter >= 0) counter(piece.counter).fetch_add(1, std::memory_order_release);
  return true;
}

bool SumEngine::advance() {
  bool under_way = false;
  for (Piece& piece : pieces_) {
    if (piece.phase == Piece::Phase::Idle) {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty()) continue;
      begin(piece, waiting_.front());
      waiting_.pop_front();
    }
    under_way = true;
    while (piece.phase != Piece::Phase::Idle && poll(piece)) {
    }
  }
  return under_way;
}

}  // namespace millrace::comm
