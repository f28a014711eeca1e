// A supervised training, played by a script: each start does what the test wrote for it. Another script stands in for
// mpirun.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "cli/supervise.h"

namespace millrace::cli {

inline std::string read_all(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::vector<std::string> lines_in(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

inline bool eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 1000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

// Standard error goes to a file while this lives.
class ErrorsTo {
 public:
  explicit ErrorsTo(const std::filesystem::path& file) : before_(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3)) {
    const int to = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    ::dup2(to, STDERR_FILENO);
    ::close(to);
  }
  ~ErrorsTo() {
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
  }

 private:
  int before_;
};

// What a start has at hand besides the shell's own: a step made, a checkpoint saved, training for ever until it is told
// to save and end.
inline constexpr const char* kProgram = R"script(#!/bin/sh
dir=$(dirname "$0")
run=$dir/run
n=$(($(cat "$dir/calls" 2>/dev/null || echo 0) + 1))
echo $n > "$dir/calls"
printf '%s\n' "$@" > "$dir/arguments-$n"
step() { mkdir -p "$run"; echo "{\"step\": $1, \"loss\": 1.5}" >> "$run/metrics.jsonl"; }
save() { mkdir -p "$run/checkpoints/$(printf 'step-%08d' "$1")"; }
train() {
  trap 'save 50; exit 75' USR1 TERM
  step "${1:-40}"
  : > "$dir/trains-$n"
  while :; do sleep 0.02; done
}
. "$dir/start-$n"
)script";

// A host is lost while there is a file of its name.
inline constexpr const char* kLauncher = R"script(#!/bin/sh
dir=$(dirname "$0")
hosts=-
while :; do
  case $1 in
    --allow-run-as-root | --quiet) shift ;;
    -n) workers=$2; shift 2 ;;
    --host) hosts=$2; shift 2 ;;
    *) break ;;
  esac
done
if [ "$1" = true ]; then
  [ ! -e "$dir/lost-${hosts%:*}" ]
  exit
fi
echo "$workers $hosts" >> "$dir/launches"
exec "$@"
)script";

class SupervisedScript : public testing::Test {
 protected:
  SupervisedScript() {
    std::string name = (std::filesystem::temp_directory_path() / "millrace-supervise-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error(name + " cannot be created");
    root_ = name;
    write_script("millrace", kProgram);
    write_script("launcher", kLauncher);
    for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK", "SLURM_STEP_NUM_TASKS"}) {
      ::unsetenv(variable);
    }
    how_.backoff_s = 0.01;
    how_.restarts = 3;
    arguments_ = {"train", "job.yaml", "--set", "batch=8", "--out", run().string(), "--plan=plan.json"};
  }
  ~SupervisedScript() override { std::filesystem::remove_all(root_); }

  std::filesystem::path run() const { return root_ / "run"; }
  void write(const std::string& file, const std::string& text) const { std::ofstream(root_ / file) << text; }
  void write_script(const std::string& file, const std::string& text) const {
    write(file, text);
    std::filesystem::permissions(root_ / file, std::filesystem::perms::owner_all);
  }
  // What the starts do, one after the other.
  void starts(const std::vector<std::string>& scripts) const {
    for (size_t i = 0; i < scripts.size(); ++i) write("start-" + std::to_string(i + 1), scripts[i] + "\n");
  }

  int supervise_here() const {
    const ErrorsTo errors(root_ / "errors");
    return supervise(how_, (root_ / "millrace").string(), arguments_, run());
  }

  // In a process of its own, for signals.
  pid_t supervise_elsewhere() const {
    const pid_t pid = ::fork();
    if (pid == 0) {
      int code = 99;
      try {
        code = supervise_here();
      } catch (const std::exception&) {
      }
      ::_exit(code);
    }
    return pid;
  }
  static int code_of(pid_t pid) {
    int status = 0;
    if (!eventually([&] { return ::waitpid(pid, &status, WNOHANG) == pid; })) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, &status, 0);
      ADD_FAILURE() << "the supervisor does not end";
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  bool start_trains(int start) const {
    return eventually([&] { return std::filesystem::exists(root_ / ("trains-" + std::to_string(start))); });
  }

  int count_starts() const {
    return std::filesystem::exists(root_ / "calls") ? std::stoi(read_all(root_ / "calls")) : 0;
  }
  std::vector<std::string> arguments_of(int start) const {
    return lines_in(read_all(root_ / ("arguments-" + std::to_string(start))));
  }
  std::string errors() const { return read_all(root_ / "errors"); }
  // Without the name before each.
  std::vector<std::string> said() const {
    std::vector<std::string> lines;
    for (const std::string& line : lines_in(errors())) {
      if (line.starts_with("millrace: ")) lines.push_back(line.substr(10));
    }
    return lines;
  }
  std::vector<nlohmann::json> history() const {
    std::vector<nlohmann::json> records;
    for (const std::string& line : lines_in(read_all(run() / "restarts.jsonl"))) {
      records.push_back(nlohmann::json::parse(line));
    }
    return records;
  }
  std::string refusal() const {
    try {
      supervise_here();
    } catch (const std::invalid_argument& error) {
      EXPECT_EQ(count_starts(), 0);
      EXPECT_FALSE(std::filesystem::exists(run()));
      return error.what();
    }
    return "not refused";
  }

  std::filesystem::path root_;
  Supervision how_;
  std::vector<std::string> arguments_;
};

}  // namespace millrace::cli
