// A training that is kept going: workers die and stop, and it ends as if nothing had been.
#include <gmock/gmock.h>

#include "cli/mpi_runner.h"
#include "cli/process_table.h"

namespace millrace::cli {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

class Restart : public MpiTest {
 protected:
  static constexpr const char* kSteps = "steps=90";

  std::vector<std::string> sets() const {
    return {kSteps,
            "checkpoint.every=5 steps",
            "data.test_samples=0",
            "parallel.silence_s=2",
            "parallel.mode=1f1b",
            "parallel.microbatches=2",
            "parallel.placement=0:0.0:1"};
  }
  std::unique_ptr<Process> start_supervised(std::vector<std::string> more) const {
    std::vector<std::string> arguments{"train", "job.yaml", "--out", "run", "--restarts", "9", "--backoff", "0.1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    for (const std::string& set : sets()) arguments.insert(arguments.end(), {"--set", set});
    return start_program(MILLRACE_BINARY, arguments);
  }
  static std::vector<std::string> two_workers() {
    return {"--workers", "2", "--launcher",
            std::string(MILLRACE_MPIRUN) + " --oversubscribe --bind-to none -x ASAN_OPTIONS=detect_leaks=0"};
  }
  static std::map<int, pid_t> workers_under(const Process& supervisor) {
    const std::vector<pid_t> launchers = children_of(supervisor.pid());
    return launchers.size() == 1 ? workers_of(launchers[0]) : std::map<int, pid_t>();
  }
  size_t steps_done() const { return exists("run/metrics.jsonl") ? lines_of(read("run/metrics.jsonl")).size() : 0; }
  // Until it trains, some steps after the last time.
  void await_progress(const Process& process, size_t steps) const {
    const auto begin = std::chrono::steady_clock::now();
    while (steps_done() < steps) {
      ASSERT_NE(::kill(process.pid(), 0), -1);
      ASSERT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(2)) << steps_done();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  void expect_as_never_interrupted(const Outcome& outcome) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    ASSERT_EQ(run({"train", "job.yaml", "--out", "whole"}, sets()).exit_code, 0);
    EXPECT_TRUE(read("run/model.safetensors") == read("whole/model.safetensors"));
  }
};

TEST_F(Restart, OfAProcessThatIsKilledTwice) {
  const auto process = start_supervised({});
  for (const size_t steps : {15, 45}) {
    ASSERT_NO_FATAL_FAILURE(await_progress(*process, steps));
    const std::vector<pid_t> children = children_of(process->pid());
    ASSERT_EQ(children.size(), 1u);
    ::kill(children[0], SIGKILL);
  }
  const Outcome outcome = finish(*process);
  expect_as_never_interrupted(outcome);
  EXPECT_THAT(outcome.err, HasSubstr("died by SIGKILL"));
  EXPECT_EQ(lines_of(read("run/restarts.jsonl")).size(), 3u);
}

// One of the processes of mpirun, killed or stopped.
TEST_F(Restart, OfWorkersThatAreLost) {
  const auto process = start_supervised(two_workers());
  size_t steps = 15;
  std::set<std::string> shared_files;
  for (const int signal : {SIGKILL, SIGSTOP}) {
    ASSERT_NO_FATAL_FAILURE(await_progress(*process, steps));
    const std::map<int, pid_t> workers = workers_under(*process);
    ASSERT_EQ(workers.size(), 2u);
    for (const auto& [rank, pid] : workers) shared_files.merge(shared_files_of(pid));
    ::kill(workers.at(1), signal);
    steps += 30;
  }
  const Outcome outcome = finish(*process);
  expect_as_never_interrupted(outcome);
  EXPECT_THAT(outcome.err, HasSubstr("died; last: "));
  EXPECT_THAT(outcome.err, HasSubstr("has not answered for 2 s; last: "));
  for (const std::string& file : shared_files) EXPECT_FALSE(std::filesystem::exists(file)) << file << " is left";
}

// All at once: nobody is left who could tell, but for mpirun.
TEST_F(Restart, OfWorkersOfWhomNoneIsLeftToNameTheOther) {
  const auto process = start_supervised(two_workers());
  ASSERT_NO_FATAL_FAILURE(await_progress(*process, 15));
  const std::map<int, pid_t> workers = workers_under(*process);
  ASSERT_EQ(workers.size(), 2u);
  for (const auto& [rank, pid] : workers) ::kill(pid, SIGKILL);
  const Outcome outcome = finish(*process);
  expect_as_never_interrupted(outcome);
  EXPECT_THAT(outcome.err, ContainsRegex("\nmillrace: worker [01] on [^ ]+ died by SIGKILL\n"));
  const auto first = nlohmann::json::parse(lines_of(read("run/restarts.jsonl")).at(0));
  EXPECT_THAT(first.at("reason").get<std::string>(), ContainsRegex("^worker [01] on [^ ]+ died by SIGKILL$"));
}

TEST_F(Restart, IsNotForWhatTheUserMustMend) {
  EXPECT_THAT(refusal({"train", "job.yaml", "--out", "run", "--restarts", "3", "--set", "batch=0"}),
              HasSubstr("batch"));
  EXPECT_THAT(refusal({"train", "job.yaml", "--elastic"}), HasSubstr("--hosts"));
  EXPECT_FALSE(exists("run"));
}

}  // namespace
}  // namespace millrace::cli
