// Jobs from the YAML files of PipeTransformer (dist_args, pipetransformer_args, model_args, dataset_args,
// optimizer_args, ...). Its other settings came from a command line; of those only the machines matter here.
#pragma once

#include <string>
#include <vector>

#include "millrace/job/job.h"

namespace millrace::job {

struct Machines {
  int nodes = 2;
  int devices = 8;  // of each
};

struct ConvertedJob {
  Job job;
  std::vector<std::string> notes;  // what could not be taken as it was: a line each
};

// Every mistake is one std::invalid_argument line that names the file and line.
ConvertedJob read_pipetransformer(const std::string& path, const Machines& machines);
ConvertedJob parse_pipetransformer(const std::string& text, const std::string& file_name, const Machines& machines);

}  // namespace millrace::job
