// Jobs as YAML files: read with --set overrides, written back, documented. What is read has been checked
// (validate.h); every mistake is one std::invalid_argument line that names the file and line, or the --set.
#pragma once

#include <string>
#include <vector>

#include "millrace/job/job.h"

namespace millrace::job {

// `sets` are the texts after --set, "optimizer.lr=0.1"; they win over the file, later ones over earlier.
Job read_job(const std::string& path, const std::vector<std::string>& sets);
Job parse_job(const std::string& yaml_text, const std::string& file_name, const std::vector<std::string>& sets);

// Every key with its value; reads back equal.
std::string to_yaml(const Job& job);
// Only those whose value is not the default: as one would write it; reads back equal.
std::string to_short_yaml(const Job& job);

// A table of every key, its default and what it means.
std::string describe_keys();

}  // namespace millrace::job
