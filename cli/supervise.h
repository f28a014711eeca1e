// Keeps a training going: runs `millrace train` as a child, and again from its newest checkpoint when it dies or hangs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/supervision.h"

namespace millrace::cli {

// Returns the exit code: 0 done, 1 gave up, 2 the user's mistake, 75 saved and ended because it was asked to, 128 + n
// ended at once by signal n. `arguments` is the command line after the program's name, without the options of the
// supervision and with --out RUN (or with --resume RUN and no --out): {"train", "job.yaml", "--out", "runs/x-1"}.
// `program` is the path of this binary. To be called before there are other threads: it takes signals for the process.
int supervise(const Supervision& how, const std::string& program, std::vector<std::string> arguments,
              const std::filesystem::path& run);

}  // namespace millrace::cli
