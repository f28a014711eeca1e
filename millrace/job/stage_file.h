// PipeDream's description of a partition, read as it is:
//
//   {"module_to_stage_map": [0, 1, 1], "stage_to_rank_map": {"0": [0, 1, 2], "1": [3]}}
//
// Module i of the model belongs to stage module_to_stage_map[i]; rank r is device 0:r. Which modules are meant is
// found by their number: plan/partition.h.
#pragma once

#include <string>
#include <vector>

#include "millrace/job/job.h"
#include "millrace/job/placement.h"

namespace millrace::job {

struct StageFile {
  std::vector<int> module_to_stage;  // from 0, never falling, no stage left out
  Placement placement;
  bool operator==(const StageFile&) const = default;
};

// Every mistake is one std::invalid_argument line that begins with the file's name.
StageFile read_stage_file(const std::string& path);
StageFile parse_stage_file(const std::string& json_text, const std::string& file_name);

// The devices of each stage, from the placement or the stage file; empty when the job gives neither.
Placement placed_stages(const Parallel& parallel);

}  // namespace millrace::job
