// Runs the real program as a user would, each test in a folder of its own that goes with it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace millrace::cli {

struct Outcome {
  int exit_code = -1;  // 128 + signal for a death by signal, as shells count
  std::string out, err;
  double seconds = 0;
  int64_t peak_bytes = 0;  // resident
};

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error(path.string() + " cannot be read");
  return {std::istreambuf_iterator<char>(in), {}};
}

// A started program. Killed if nobody waits for it, or if it takes longer than any test should.
class Process {
 public:
  // `out` and `err` are file descriptors: of a file, or of a terminal's end.
  Process(const std::vector<std::string>& arguments, const std::filesystem::path& directory, int out, int err)
      : Process(MILLRACE_BINARY, arguments, directory, out, err) {}
  // `program` by its path.
  Process(const std::string& program, const std::vector<std::string>& arguments, const std::filesystem::path& directory,
          int out, int err) {
    std::vector<char*> argv{const_cast<char*>(program.c_str())};
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error("fork failed");
    if (pid_ > 0) return;
    // Only what is safe between fork and exec. A test that is killed takes the program with it.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::chdir(directory.c_str()) != 0 || ::dup2(out, STDOUT_FILENO) < 0 || ::dup2(err, STDERR_FILENO) < 0) _exit(126);
    ::execv(program.c_str(), argv.data());
    _exit(127);
  }
  ~Process() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }  // -1 once it was waited for
  void interrupt() const { ::kill(pid_, SIGINT); }

  Outcome wait() {
    constexpr auto kLongest = std::chrono::minutes(8);
    int status = 0;
    rusage usage{};
    pid_t ended = 0;
    while ((ended = ::wait4(pid_, &status, WNOHANG, &usage)) == 0) {
      if (std::chrono::steady_clock::now() - start_ > kLongest) throw std::runtime_error("the program hangs");
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    if (ended < 0) throw std::runtime_error("wait4 failed");
    pid_ = -1;
    Outcome outcome;
    outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    outcome.peak_bytes = int64_t{usage.ru_maxrss} * 1024;
    return outcome;
  }

 private:
  pid_t pid_ = -1;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

class CommandTest : public testing::Test {
 protected:
  CommandTest() {
    std::string name = (std::filesystem::temp_directory_path() / "millrace-cli-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error(name + " cannot be created");
    root_ = name;
    work_ = root_ / "work";
    std::filesystem::create_directory(work_);
    ::setenv("XDG_CACHE_HOME", (root_ / "cache").c_str(), 1);
    ::unsetenv("NO_COLOR");
  }
  ~CommandTest() override { std::filesystem::remove_all(root_); }

  // Runs `millrace ARGUMENTS` in the test's folder.
  Outcome run(const std::vector<std::string>& arguments) const {
    return finish(*start_program(MILLRACE_BINARY, arguments));
  }

  // The same with `--set` before each of `sets`.
  Outcome run(std::vector<std::string> arguments, const std::vector<std::string>& sets) const {
    for (const std::string& set : sets) arguments.insert(arguments.end(), {"--set", set});
    return run(arguments);
  }

  void write(const std::string& file, const std::string& text) const {
    std::ofstream(path(file), std::ios::binary) << text;
  }
  // What a mistake is answered with: one line on standard error, exit code 2, no file written or touched.
  std::string refusal(const std::vector<std::string>& arguments, const std::vector<std::string>& sets = {}) const {
    const auto before = files();
    const Outcome outcome = run(arguments, sets);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_TRUE(outcome.err.starts_with("millrace: ") && outcome.err.ends_with("\n")) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(files(), before);
    return outcome.err;
  }
  std::string read(const std::string& file) const { return read_text(path(file)); }
  std::filesystem::path path(const std::string& file) const { return work_ / file; }
  bool exists(const std::string& file) const { return std::filesystem::exists(path(file)); }
  nlohmann::json json(const std::string& file) const { return nlohmann::json::parse(read(file)); }

  // The steps' records of a run's metrics.jsonl; evaluations have no step.
  std::vector<nlohmann::json> steps(const std::string& run_directory) const {
    std::vector<nlohmann::json> records;
    std::ifstream in(path(run_directory) / "metrics.jsonl");
    for (std::string line; std::getline(in, line);) {
      nlohmann::json record = nlohmann::json::parse(line);
      if (record.contains("step")) records.push_back(std::move(record));
    }
    return records;
  }

  // Everything in the test's folder, by relative path.
  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(work_)) {
      names.insert(entry.path().lexically_relative(work_).string());
    }
    return names;
  }

  // In the test's folder, its output kept for finish(); one at a time.
  std::unique_ptr<Process> start_program(const std::string& program, const std::vector<std::string>& arguments) const {
    const int out = create(root_ / "stdout"), err = create(root_ / "stderr");
    auto process = std::make_unique<Process>(program, arguments, work_, out, err);
    ::close(out);
    ::close(err);
    return process;
  }
  Outcome finish(Process& process) const {
    Outcome outcome = process.wait();
    outcome.out = read_text(root_ / "stdout");
    outcome.err = read_text(root_ / "stderr");
    return outcome;
  }

  static int create(const std::filesystem::path& path) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0) throw std::runtime_error(path.string() + " cannot be created");
    return file;
  }

  std::filesystem::path root_;
  std::filesystem::path work_;  // where the program runs
};

}  // namespace millrace::cli
