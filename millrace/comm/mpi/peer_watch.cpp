#include "millrace/comm/mpi/peer_watch.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "millrace/comm/process.h"

namespace millrace::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kBeat = 200ms;
// mpirun leaves about a second between asking processes to end and killing them.
constexpr auto kAfterSignal = 600ms;
// One that has told all before it ended is heard within this.
constexpr auto kListen = 150ms;
constexpr auto kStale = 450ms;

std::atomic<bool> asked_to_end{false};

constexpr int kHostBytes = 64;

}  // namespace

PeerWatch::PeerWatch(int rank, int size) : rank_(rank), size_(size), host_(host_name()), peers_(size) {
  MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
  struct Card {
    pid_t pid;
    char host[kHostBytes];
  } own{getpid(), {}};
  std::strncpy(own.host, host_.c_str(), kHostBytes - 1);
  std::vector<Card> cards(size);
  MPI_Allgather(&own, sizeof own, MPI_BYTE, cards.data(), sizeof own, MPI_BYTE, comm_);
  const auto now = Clock::now();
  for (int r = 0; r < size; ++r) {
    peers_[r].pid = cards[r].pid;
    peers_[r].host = cards[r].host;
    peers_[r].seen = now;
    // Silence is for one to tell: process 0 for all others, process 1 for process 0.
    peers_[r].watched = r != rank && (rank == 0 || (rank == 1 && r == 0));
  }
  last_tick_ = now;
  sends_.assign(2, MPI_REQUEST_NULL);
  MPI_Irecv(&received_, sizeof received_, MPI_BYTE, MPI_ANY_SOURCE, 0, comm_, &receive_);

  struct sigaction action {};
  action.sa_handler = [](int) { asked_to_end.store(true); };
  ::sigaction(SIGTERM, &action, nullptr);
}

PeerWatch::~PeerWatch() {
  ::signal(SIGTERM, SIG_DFL);
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized) return;
  MPI_Cancel(&receive_);
  MPI_Wait(&receive_, MPI_STATUS_IGNORE);
}

void PeerWatch::show(std::function<std::string()> doing) {
  const std::lock_guard lock(mutex_);
  doing_ = std::move(doing);
}

void PeerWatch::tick() {
  const auto now = Clock::now();
  if (stopped_since(last_tick_)) {
    was_stopped_ = true;
    woke_ = now;
    for (Peer& peer : peers_) peer.seen = now;
  }
  last_tick_ = now;
  // A process that was stopped itself knows nothing of the others, and those have named it.
  if (was_stopped_ && now - woke_ < silence() && asked_to_end.load(std::memory_order_relaxed)) _exit(1);
  take_beats(now);
  if (now >= next_beat_) send_beats(now);
  look_for_silence(now);
  if (asked_to_end.load(std::memory_order_relaxed)) look_after_signal(now);
}

// Also in the middle of a tick, which then goes on with what it knew before.
bool PeerWatch::stopped_since(Clock::time_point then) const {
  return Clock::now() - then > silence() / 2;  // so long without a tick, this process was stopped itself
}

void PeerWatch::send_beats(Clock::time_point now) {
  next_beat_ = now + kBeat;
  int complete = 0;
  MPI_Testall(2, sends_.data(), &complete, MPI_STATUSES_IGNORE);
  if (!complete) return;  // the last ones are still on their way: the silence speaks for itself
  sent_.rank = rank_;
  {
    const std::lock_guard lock(mutex_);
    std::strncpy(sent_.doing, doing_ ? doing_().c_str() : "starting", kTextBytes - 1);
  }
  const int next = (rank_ + 1) % size_;
  if (rank_ != 0) MPI_Isend(&sent_, sizeof sent_, MPI_BYTE, 0, 0, comm_, &sends_[0]);
  if (next != 0 && next != rank_) MPI_Isend(&sent_, sizeof sent_, MPI_BYTE, next, 0, comm_, &sends_[1]);
}

void PeerWatch::say_goodbye() {
  Beat beat;
  beat.rank = rank_;
  beat.is_goodbye = true;
  for (int r = 0; r < size_; ++r) {
    const bool silent = peers_[r].watched && Clock::now() - peers_[r].seen > silence();
    if (r == rank_ || silent || is_dead(peers_[r])) continue;
    MPI_Send(&beat, sizeof beat, MPI_BYTE, r, 0, comm_);
  }
}

void PeerWatch::take_beats(Clock::time_point now) {
  for (;;) {
    int complete = 0;
    MPI_Test(&receive_, &complete, MPI_STATUS_IGNORE);
    if (!complete) return;
    peers_[received_.rank].seen = now;
    peers_[received_.rank].doing = received_.doing;
    reason_is_known_ |= received_.is_goodbye;
    MPI_Irecv(&received_, sizeof received_, MPI_BYTE, MPI_ANY_SOURCE, 0, comm_, &receive_);
  }
}

void PeerWatch::name(int rank, const std::string& what) const {
  fmt::print(stderr, "\nmillrace: worker {} on {} {}; last: {}\n", rank, peers_[rank].host, what, peers_[rank].doing);
  std::fflush(stderr);
}

void PeerWatch::look_for_silence(Clock::time_point now) {
  for (int r = 0; r < size_; ++r) {
    if (!peers_[r].watched || now - peers_[r].seen < silence()) continue;
    if (stopped_since(now)) return;
    name(r, fmt::format("has not answered for {:.3g} s", silence_s_.load()));
    say_goodbye();
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

bool PeerWatch::is_dead(const Peer& peer) const {
  if (peer.host != host_) return false;
  if (kill(peer.pid, 0) != 0) return true;
  std::ifstream stat(fmt::format("/proc/{}/stat", peer.pid));
  std::string text;
  std::getline(stat, text);
  const size_t end = text.rfind(')');
  return end == std::string::npos || text.compare(end + 2, 1, "Z") == 0;
}

// mpirun ends all processes when one has died. Those that are left look for it for a moment, then end too. Since mpirun
// kills the rest at once when one more ends, all wait for the one that tells.
void PeerWatch::look_after_signal(Clock::time_point now) {
  if (signalled_ == Clock::time_point{}) signalled_ = now;
  if (reason_is_known_) _exit(1);
  bool mine_to_tell = true;  // the first of a host speaks for it
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    const bool dead = is_dead(peers_[r]);
    if (!dead && r < rank_ && peers_[r].host == host_) mine_to_tell = false;
    // It was dead before the signal came; those that die later do so because of it.
    if (dead && lost_ < 0 && now - signalled_ < kListen) lost_ = r;
  }
  if (stopped_since(now) || now - signalled_ < kListen) return;
  if (lost_ >= 0 && mine_to_tell) {
    take_beats(now);  // one that was found dead just now may have told
    if (!reason_is_known_) {
      name(lost_, "died");
      say_goodbye();
    }
    _exit(1);
  }
  if (now - signalled_ < kAfterSignal) return;
  for (int r = 0; r < size_; ++r) {
    if (!peers_[r].watched || peers_[r].host == host_ || now - peers_[r].seen < kStale) continue;
    if (rank_ == 0 || r == 0) name(r, "died");
    _exit(1);
  }
  if (keeps_term_) {  // nobody was lost, and this process is not either
    asked_to_end = false;
    signalled_ = {};
    term_was_asked_ = true;
    return;
  }
  say_goodbye();
  ::signal(SIGTERM, SIG_DFL);
  ::raise(SIGTERM);
}

}  // namespace millrace::comm
