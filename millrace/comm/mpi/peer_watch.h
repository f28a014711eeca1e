// Keeps watch over the processes of a run: each tells process 0 and its neighbour, several times a second, that it is
// alive and what it is doing. One that falls silent, or is found dead when mpirun ends the job, is named with host and
// last action, once, before everything stops.
#pragma once

#include <mpi.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace millrace::comm {

class PeerWatch {
 public:
  PeerWatch(int rank, int size);
  ~PeerWatch();

  void show(std::function<std::string()> doing);

  void set_silence(double seconds) { silence_s_.store(seconds); }
  // From now on a SIGTERM while nobody is lost does not end the process, but is told here.
  void keep_term_signal() { keeps_term_.store(true); }
  bool term_was_asked() const { return term_was_asked_.load(); }

  // Tells everyone that this process ends and has said why.
  void say_goodbye();

  // Called often, by one thread. Ends the process and the job if a peer is lost.
  void tick();

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kTextBytes = 160;
  struct Beat {
    int rank = 0;
    bool is_goodbye = false;
    char doing[kTextBytes] = {};
  };
  struct Peer {
    pid_t pid = 0;
    std::string host;
    bool watched = false;
    Clock::time_point seen;
    std::string doing = "starting";
  };

  void send_beats(Clock::time_point now);
  void take_beats(Clock::time_point now);
  void look_for_silence(Clock::time_point now);
  void look_after_signal(Clock::time_point now);
  bool is_dead(const Peer& peer) const;
  bool stopped_since(Clock::time_point then) const;
  void name(int rank, const std::string& what) const;
  Clock::duration silence() const {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(silence_s_.load()));
  }

  const int rank_, size_;
  std::string host_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::vector<Peer> peers_;
  Beat sent_, received_;
  std::vector<MPI_Request> sends_;
  MPI_Request receive_ = MPI_REQUEST_NULL;
  Clock::time_point next_beat_, signalled_, last_tick_, woke_;
  std::atomic<double> silence_s_{8};
  std::atomic<bool> keeps_term_{false}, term_was_asked_{false};
  bool was_stopped_ = false;
  int lost_ = -1;  // found dead when the signal to end came
  bool reason_is_known_ = false;
  std::mutex mutex_;
  std::function<std::string()> doing_;
};

}  // namespace millrace::comm
