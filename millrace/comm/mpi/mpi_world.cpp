#include "millrace/comm/mpi/mpi_world.h"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <utility>

#include "millrace/base/error.h"

namespace millrace::comm {

MpiWorld::MpiWorld() {
  // So many streams of a GPU do not get in each other's way. Before anyone touches it: MPI may.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  if (provided < MPI_THREAD_MULTIPLE) fail_run("this MPI does not allow several threads (MPI_THREAD_MULTIPLE)");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  MPI_Comm host = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &host);
  MPI_Comm_size(host, &size_on_host_);
  MPI_Comm_free(&host);
  watch_ = std::make_unique<PeerWatch>(rank_, size_);
  thread_ = std::thread([this] { serve(); });
}

// After a failure the job is ended by end_failed_process(), once the reason was printed.
MpiWorld::~MpiWorld() {
  stop();
  if (aborted() || std::uncaught_exceptions() > 0) {
    watch_->say_goodbye();
    (void)watch_.release();  // others may still be sending to it
    return;
  }
  watch_.reset();
  MPI_Finalize();
}

void MpiWorld::add(Served& served) {
  const std::lock_guard lock(mutex_);
  served_.push_back(&served);
}

void MpiWorld::remove(Served& served) {
  const std::lock_guard lock(mutex_);
  std::erase(served_, &served);
}

void MpiWorld::show(const void* who, std::function<std::string()> doing) {
  const std::lock_guard lock(mutex_);
  if (!doing && shown_ != who) return;
  shown_ = who;
  watch_->show(std::move(doing));
}

void MpiWorld::abort() {
  aborted_ = true;
  const std::lock_guard lock(mutex_);
  for (Served* served : served_) served->wake();
}

void MpiWorld::stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void MpiWorld::serve() {
  while (!stop_) {
    bool busy = false;
    {
      const std::lock_guard lock(mutex_);
      for (Served* served : served_) busy |= served->serve();
    }
    watch_->tick();
    // Every call moves MPI's own messages forward, too: a large one needs that while its worker computes.
    std::this_thread::sleep_for(std::chrono::microseconds(busy ? 50 : 200));
  }
}

}  // namespace millrace::comm
