// This process among those that run the job together: one with all workers as threads, or one per worker under MPI.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millrace/backend/memory.h"
#include "millrace/comm/endpoint.h"
#include "millrace/comm/orders.h"

namespace millrace::comm {

// What a worker tells process 0 while training goes on.
struct Event {
  enum class Kind : int32_t { Step, Evaluation, Saved, Watched };
  int64_t number = 0;  // the step, or that before which was evaluated or saved
  int part = 0;        // which of those that tell of it
  Kind kind = Kind::Step;
  std::array<double, 8> values{};
  std::array<char, 240> failure{};                // of saving: why it could not be; empty: it could
  std::chrono::steady_clock::time_point at = {};  // when process 0 learned of it; set on the way
};

class Process {
 public:
  virtual ~Process() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int size_on_host() const = 0;  // processes that share this host

  // Once more the same processes, with messages, sums, events and orders of their own: for a training that is made
  // while this one's goes on. Together with all others, and gone before this one is.
  virtual std::unique_ptr<Process> beside() = 0;

  // Before workers connect.
  virtual void open(const Topology& topology) = 0;
  // One endpoint per worker of this process, with the memory its messages lie in, which must outlive it.
  virtual std::unique_ptr<Endpoint> connect(int worker, backend::Memory& memory) = 0;
  // Instead of open() and connect(), by a process that has failed before: others whose devices could be joined wait for
  // it there.
  virtual void decline_to_join() {}

  virtual void tell(const Event& event) = 0;  // throws Aborted: a worker that waits for nobody learns it here
  // On process 0: the next event, or nothing after the wait. Throws Aborted.
  virtual std::optional<Event> next_event(std::chrono::milliseconds wait) = 0;

  // On process 0: for the workers of all processes.
  virtual void order(const Order& order) = 0;
  virtual void grant(int64_t step) = 0;  // those before it may be begun
  virtual OrderBook& orders() = 0;       // this process's copy

  // Together with all other processes: everyone's text to process 0 (empty elsewhere); process 0's text to everyone.
  virtual std::vector<std::string> gather(const std::string& text) = 0;
  virtual std::string broadcast(const std::string& text) = 0;
  // From one process to another, both of which know that it comes, and how large it is; waits until it is there.
  virtual void send(int /*to*/, std::span<const std::byte> /*bytes*/) {}  // alone there is nobody
  virtual void receive(int /*from*/, std::span<std::byte> /*bytes*/) {}

  // This process cannot go on: its waits throw Aborted.
  virtual void abort() = 0;

  // What its worker is doing, for messages when it is lost; asked from another thread.
  virtual void show(std::function<std::string()> /*doing*/) {}

  // Others that are not heard of for so long are lost.
  virtual void set_silence(double /*seconds*/) {}

  // Several processes: a SIGTERM that comes while none of them is lost no longer ends this one, but is told here.
  // (mpirun sends the same signal when a process has died.)
  virtual void keep_term_signal() {}
  virtual bool term_was_asked() const { return false; }
};

// Under mpirun or srun one of several, otherwise on its own.
std::unique_ptr<Process> make_process();
std::unique_ptr<Process> make_local_process();
std::unique_ptr<Process> make_mpi_process();

// Whether this is process 0, or the only one; known before anything is set up.
bool is_first_process();

std::string host_name();

// The last call before a process exits with a failure that others do not know of: ends them too.
void end_failed_process(int exit_code);

}  // namespace millrace::comm
