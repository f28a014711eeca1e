// Whether the devices of all processes can be joined: decided together, so that all do the same. A process that fails
// tells, since the others wait for it.
#pragma once

#include <mpi.h>

#include <optional>
#include <string>

#include "millrace/backend/fabric.h"
#include "millrace/comm/endpoint.h"

namespace millrace::comm {

// Why they cannot, in words; empty: they can. `fabric` is what this process's device has; null: none, which `why` says
// more of.
std::string reason_not_to_join(MPI_Comm comm, const Topology& topology, const backend::Fabric* fabric,
                               const std::string& why);
// In its place, from a process that will not join.
void tell_of_failure(MPI_Comm comm);

// Once they have been joined, or not: what failed on the first process on which something did; empty: nothing. A
// process with a `failure` may be one that others wait for, and has no answer if they do not come within the time.
std::optional<std::string> first_failure(MPI_Comm comm, const std::string& failure, double seconds);

}  // namespace millrace::comm
