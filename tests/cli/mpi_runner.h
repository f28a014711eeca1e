// Runs the program as several processes under mpirun. Skips where that cannot be.
#pragma once

#include <algorithm>
#include <array>
#include <cstdio>
#include <sstream>

#include "cli/command_runner.h"

namespace millrace::cli {

// Why nothing can be run under mpirun here; empty where it can.
inline const std::string& reason_without_mpi() {
  static const std::string reason = []() -> std::string {
    const std::string mpirun = MILLRACE_MPIRUN;
    if (mpirun.empty()) return "MPI is not built in (MILLRACE_MPI)";
    if (::access(mpirun.c_str(), X_OK) != 0) return mpirun + " is missing";
    std::string version;
    if (std::FILE* pipe = ::popen((mpirun + " --version 2>&1").c_str(), "r")) {
      std::array<char, 256> piece{};
      while (std::fgets(piece.data(), piece.size(), pipe)) version += piece.data();
      ::pclose(pipe);
    }
    // mpirun and mpiexec of the same release say either.
    const bool is_open_mpi =
        version.find("Open MPI") != std::string::npos || version.find("OpenRTE") != std::string::npos;
    return is_open_mpi ? "" : mpirun + " is not Open MPI's";
  }();
  return reason;
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// The program's own lines among mpirun's.
inline std::vector<std::string> failures_in(const std::string& err) {
  std::vector<std::string> lines = lines_of(err);
  std::erase_if(lines, [](const std::string& line) { return !line.starts_with("millrace: "); });
  return lines;
}

// 26 samples in batches of 8: the last of an epoch has 2, so that some micro-batches and replicas have none.
inline std::string small_job() {
  return R"(name: small
batch: 8
steps: 6
threads: 1
seed: 5
device: reference
model:
  name: alexnet_small
  classes: 10
  image_size: 24
  dropout: 0.5
data:
  kind: generated
  train_samples: 26
  test_samples: 11
optimizer:
  lr: 0.05
  weight_decay: 1e-3
)";
}

class MpiTest : public CommandTest {
 protected:
  void SetUp() override {
    if (!reason_without_mpi().empty()) GTEST_SKIP() << reason_without_mpi();
    write("job.yaml", small_job());
  }

  // Any program.
  std::unique_ptr<Process> start_under_mpi(int processes, const std::string& program,
                                           const std::vector<std::string>& arguments,
                                           const std::vector<std::string>& variables = {}) const {
    // Open MPI leaks at exit, which is not ours to find.
    const char* sanitizer = std::getenv("ASAN_OPTIONS");
    const std::string no_leaks = (sanitizer ? std::string(sanitizer) + ":" : std::string()) + "detect_leaks=0";
    std::vector<std::string> all{
        "--allow-run-as-root",     "--oversubscribe", "--bind-to", "none", "-n", std::to_string(processes), "-x",
        "ASAN_OPTIONS=" + no_leaks};
    for (const std::string& variable : variables) all.insert(all.end(), {"-x", variable});
    all.push_back(program);
    all.insert(all.end(), arguments.begin(), arguments.end());
    return start_program(MILLRACE_MPIRUN, all);
  }

  // A disabled test of this program, in every process.
  Outcome run_disabled(int processes, const std::string& test, const std::string& variable) const {
    const std::string self = std::filesystem::read_symlink("/proc/self/exe");
    return finish(*start_under_mpi(
        processes, self, {"--gtest_also_run_disabled_tests", "--gtest_color=no", "--gtest_filter=DISABLED_" + test},
        {variable}));
  }

  std::unique_ptr<Process> start_mpi(int processes, std::vector<std::string> arguments,
                                     const std::vector<std::string>& sets = {}) const {
    for (const std::string& set : sets) arguments.insert(arguments.end(), {"--set", set});
    return start_under_mpi(processes, MILLRACE_BINARY, arguments);
  }

  Outcome run_mpi(int processes, const std::vector<std::string>& arguments,
                  const std::vector<std::string>& sets = {}) const {
    return finish(*start_mpi(processes, arguments, sets));
  }
};

}  // namespace millrace::cli
