#include "millrace/comm/mpi/mpi_sideband.h"

#include <exception>

#include "millrace/base/error.h"
#include "millrace/comm/mpi/check.h"

namespace millrace::comm {
namespace {

enum Tag { kNotice, kId };

}  // namespace

MpiSideband::MpiSideband(MPI_Comm comm, size_t most) : comm_(comm), outgoing_(most + 1) {
  for (Place& place : incoming_) open(place);
}

MpiSideband::~MpiSideband() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized) return;
  for (Place& place : incoming_) {
    MPI_Cancel(&place.request);
    MPI_Wait(&place.request, MPI_STATUS_IGNORE);
  }
  if (std::uncaught_exceptions() > 0) return;  // nobody may be there to take them
  for (Place& place : outgoing_) MPI_Wait(&place.request, MPI_STATUS_IGNORE);
}

void MpiSideband::open(Place& place) {
  check_mpi(MPI_Irecv(&place.notice, sizeof place.notice, MPI_BYTE, MPI_ANY_SOURCE, kNotice, comm_, &place.request),
            "opening a notice");
}

void MpiSideband::share(backend::Fabric::Id& id, std::span<const int> workers) {
  int rank = 0;
  MPI_Comm_rank(comm_, &rank);
  const auto bytes = static_cast<int>(id.size());
  if (rank != workers[0]) {
    check_mpi(MPI_Recv(id.data(), bytes, MPI_BYTE, workers[0], kId, comm_, MPI_STATUS_IGNORE), "joining devices");
    return;
  }
  for (const int worker : workers.subspan(1)) {
    check_mpi(MPI_Send(id.data(), bytes, MPI_BYTE, worker, kId, comm_), "joining devices");
  }
}

void MpiSideband::tell(int worker, const Notice& notice) {
  Place& place = outgoing_[next_outgoing_];
  next_outgoing_ = (next_outgoing_ + 1) % outgoing_.size();
  int is_free = 1;
  if (place.request != MPI_REQUEST_NULL) MPI_Test(&place.request, &is_free, MPI_STATUS_IGNORE);
  if (!is_free) fail_run("more notices are under way than there are messages");
  place.notice = notice;
  check_mpi(MPI_Isend(&place.notice, sizeof place.notice, MPI_BYTE, worker, kNotice, comm_, &place.request),
            "telling of a message");
}

bool MpiSideband::next(Notice& notice) {
  Place& place = incoming_[next_incoming_];
  int complete = 0;
  check_mpi(MPI_Test(&place.request, &complete, MPI_STATUS_IGNORE), "waiting for notices");
  if (!complete) return false;
  notice = place.notice;
  open(place);
  next_incoming_ = (next_incoming_ + 1) % incoming_.size();
  return true;
}

}  // namespace millrace::comm
