// A job of several processes of which one dies, stops or fails: all of it ends soon, one line says who was lost, and
// nothing stays behind.
#include <gmock/gmock.h>

#include <map>

#include "cli/mpi_runner.h"
#include "cli/process_table.h"

namespace millrace::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::SizeIs;

constexpr double kLongestEnd = 15;  // seconds: the requirement; about 1 after a death and 9 after a stop

class FaultTest : public MpiTest {
 protected:
  void TearDown() override {
    // mpirun may be gone a moment before those it killed.
    const auto any_runs = [&] {
      return std::any_of(workers_.begin(), workers_.end(),
                         [](const auto& worker) { return is_running(worker.second); });
    };
    for (int i = 0; i < 100 && any_runs(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    for (const auto& [rank, pid] : workers_) {
      EXPECT_FALSE(is_running(pid)) << "worker " << rank << " is left";
      if (is_running(pid)) ::kill(pid, SIGKILL);
    }
    for (const std::string& file : shared_files_) EXPECT_FALSE(std::filesystem::exists(file)) << file << " is left";
  }

  // Returns when training is under way.
  void start_long_job(int processes, std::vector<std::string> sets) {
    sets.emplace_back("steps=1000000");
    sets.emplace_back("data.test_samples=0");
    job_ = start_mpi(processes, {"train", "job.yaml", "--out", "run"}, sets);
    const auto start = std::chrono::steady_clock::now();
    while (!exists("run/metrics.jsonl") || lines_of(read("run/metrics.jsonl")).size() < 20) {
      ASSERT_TRUE(is_running(job_->pid())) << read_text(root_ / "stderr");
      ASSERT_LT(std::chrono::steady_clock::now() - start, std::chrono::minutes(2)) << "training does not begin";
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    workers_ = workers_of(job_->pid());
    ASSERT_THAT(workers_, SizeIs(processes));
    for (const auto& [rank, pid] : workers_) shared_files_.merge(shared_files_of(pid));
  }

  // Seconds from now to its end are limited.
  Outcome end_of_job() {
    const auto start = std::chrono::steady_clock::now();
    const Outcome outcome = finish(*job_);
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), kLongestEnd);
    return outcome;
  }

  std::unique_ptr<Process> job_;
  std::map<int, pid_t> workers_;
  std::set<std::string> shared_files_;
};

struct Fault {
  std::string name;
  int processes;
  int rank;
  int signal;
};

class LostWorker : public FaultTest, public testing::WithParamInterface<Fault> {};

TEST_P(LostWorker, EndsTheJobAndIsNamed) {
  const Fault& fault = GetParam();
  std::string placement = "0:0";
  for (int worker = 1; worker < fault.processes; ++worker) placement += ".0:" + std::to_string(worker);
  ASSERT_NO_FATAL_FAILURE(start_long_job(
      fault.processes, {"parallel.mode=1f1b", "parallel.microbatches=4", "parallel.placement=" + placement}));
  ASSERT_EQ(::kill(workers_.at(fault.rank), fault.signal), 0);
  const Outcome outcome = end_of_job();
  EXPECT_NE(outcome.exit_code, 0);
  const std::vector<std::string> lines = failures_in(outcome.err);
  char host[64] = {};
  ::gethostname(host, sizeof host - 1);
  const std::string what = fault.signal == SIGKILL ? "died" : "has not answered for 8 s";
  const std::string who = "millrace: worker " + std::to_string(fault.rank) + " on " + host + " " + what;
  ASSERT_THAT(lines, SizeIs(1)) << outcome.err;
  EXPECT_THAT(lines[0], HasSubstr(who + "; last: stage " + std::to_string(fault.rank) + ", "));
  EXPECT_THAT(lines[0], MatchesRegex(".*, [a-z ]+, (micro-batch|update) [0-9]+"));
}

INSTANTIATE_TEST_SUITE_P(Mpi, LostWorker,
                         testing::Values(Fault{"Kill0Of2", 2, 0, SIGKILL}, Fault{"Kill1Of2", 2, 1, SIGKILL},
                                         Fault{"Kill0Of3", 3, 0, SIGKILL}, Fault{"Kill1Of3", 3, 1, SIGKILL},
                                         Fault{"Stop0Of2", 2, 0, SIGSTOP}, Fault{"Stop1Of2", 2, 1, SIGSTOP},
                                         Fault{"Stop0Of3", 3, 0, SIGSTOP}, Fault{"Stop1Of3", 3, 1, SIGSTOP}),
                         [](const auto& param) { return param.param.name; });

TEST_F(FaultTest, AnInterruptEndsAllWithoutBlame) {
  ASSERT_NO_FATAL_FAILURE(start_long_job(3, {"parallel.placement=0:0-2"}));
  job_->interrupt();
  const Outcome outcome = end_of_job();
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(failures_in(outcome.err), SizeIs(0)) << outcome.err;
}

TEST_F(FaultTest, DivergenceEndsAllWithOneLine) {
  const Outcome outcome = run_mpi(2, {"train", "job.yaml", "--out", "run"},
                                  {"parallel.mode=1f1b", "parallel.microbatches=4", "parallel.placement=0:0.0:1",
                                   "steps=1000", "optimizer.lr=1e9"});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  const std::vector<std::string> lines = failures_in(outcome.err);
  ASSERT_THAT(lines, SizeIs(1)) << outcome.err;
  EXPECT_THAT(lines[0], HasSubstr("small: diverged at step "));
  EXPECT_EQ(json("run/summary.json").at("diverged"), true);
  EXPECT_FALSE(exists("run/model.safetensors"));
}

// The disk is full when process 0 writes of its first step.
TEST_F(FaultTest, AFailureOfProcessZeroEndsAllWithOneLine) {
  std::filesystem::create_directories(path("run/metrics.jsonl"));
  const Outcome outcome = run_mpi(3, {"train", "job.yaml", "--out", "run"},
                                  {"parallel.mode=ssp", "parallel.placement=0:0.0:1.0:2", "steps=1000000"});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  const std::vector<std::string> lines = failures_in(outcome.err);
  ASSERT_THAT(lines, SizeIs(1)) << outcome.err;
  EXPECT_THAT(lines[0], AllOf(HasSubstr("run/metrics.jsonl: cannot be written"), HasSubstr("Is a directory")));
}

// A disk that is full: said once, and the training comes to its end.
TEST_F(FaultTest, AFullDiskDoesNotEndTheTraining) {
  std::filesystem::create_directory(path("run"));
  std::filesystem::create_symlink("/dev/full", path("run/metrics.jsonl"));
  write("run/checkpoints", "in the way");
  const Outcome outcome = run_mpi(2, {"train", "job.yaml", "--out", "run"},
                                  {"parallel.mode=ssp", "parallel.placement=0:0.0:1", "checkpoint.every=3 steps"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("metrics.jsonl: cannot be written: No space left on device; training goes on"));
  EXPECT_THAT(outcome.err, HasSubstr("the checkpoint of step 3 is left out: "));
  EXPECT_EQ(json("run/summary.json").at("failed_saves").size(), 2u);
  EXPECT_EQ(json("run/summary.json").at("steps"), 6);
}

}  // namespace
}  // namespace millrace::cli
