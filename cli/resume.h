// Going on from a checkpoint: which one, with which job, into which run directory.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "millrace/job/job.h"
#include "millrace/state/checkpoint_store.h"

namespace millrace::cli {

struct ResumeArguments {
  std::string from;  // a run or a checkpoint; empty: the run begins anew
  bool fallback = false;
};

struct Resumed {
  state::Chosen checkpoint;
  job::Job job;
  std::filesystem::path run;       // that the checkpoint belongs to; empty: none
  std::vector<std::string> notes;  // for the user
};

// The job that was saved, or the one that is named, with --plan and --set. Refuses what would not be the same training.
Resumed resume(const ResumeArguments& arguments, const JobArguments& job);

// A run that goes on in its own directory: checkpoints after the one it goes on from are another course of it. Good
// ones are refused unless they may be overwritten.
void check_later_checkpoints(const Resumed& resumed, bool overwrite);
// When nothing is left that could be refused: damaged ones are renamed, good ones removed.
void set_aside_later_checkpoints(const Resumed& resumed);

}  // namespace millrace::cli
