// The whole of a file that a user wrote by hand: a job, or what a job names.
#pragma once

#include <string>

namespace millrace::job {

// `kind` names the file in messages, e.g. "job file". Throws for what is missing, a directory or larger than 1 MiB.
std::string read_small_file(const std::string& path, const std::string& kind);

}  // namespace millrace::job
