// What must hold between the keys of a job, whatever file or command line it came from.
#pragma once

#include <string>

#include "millrace/job/job.h"

namespace millrace::job {

// Throws std::invalid_argument for the first thing that cannot be; `where` opens the message.
void validate(const Job& job, const std::string& where);
// The part of it about parallel.*; expects every key in its range.
void validate_parallel(const Job& job, const std::string& where);
// The part of it about elastic.*.
void validate_elastic(const Job& job, const std::string& where);

}  // namespace millrace::job
