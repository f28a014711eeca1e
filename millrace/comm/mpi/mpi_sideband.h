// Notices between workers as small MPI messages, in places that are used again and again.
#pragma once

#include <mpi.h>

#include <array>
#include <vector>

#include "millrace/comm/sideband.h"

namespace millrace::comm {

class MpiSideband final : public Sideband {
 public:
  // `comm` is for it alone. There are never more notices on their way from here than `most`.
  MpiSideband(MPI_Comm comm, size_t most);
  ~MpiSideband() override;

  void share(backend::Fabric::Id& id, std::span<const int> workers) override;
  void tell(int worker, const Notice& notice) override;
  bool next(Notice& notice) override;

 private:
  struct Place {
    Notice notice;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  void open(Place& place);

  MPI_Comm comm_;
  // Both are rings. What comes is taken in the order in which its places were opened, which is the order it came in.
  std::array<Place, 32> incoming_;
  std::vector<Place> outgoing_;
  size_t next_incoming_ = 0, next_outgoing_ = 0;
};

}  // namespace millrace::comm
