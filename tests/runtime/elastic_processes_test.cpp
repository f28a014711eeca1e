// Trainings that follow one another in several processes: each is made beside the one before it, and the numbers are
// those of threads. The processes are this program, started again under mpirun.
#include <gmock/gmock.h>

#include <filesystem>

#include "cli/mpi_runner.h"
#include "runtime/elastic_harness.h"

namespace millrace::runtime {
namespace {

using testing::HasSubstr;

constexpr const char* kStarted = "MILLRACE_TEST_ELASTIC";
constexpr int kProcesses = 3;

// Decided two steps ahead of every eighth.
job::Job scheduled_job() { return freezing_job(job::Freeze::Schedule); }

struct ElasticRun {
  std::vector<double> losses, test_losses;
  std::vector<std::string> notes;
  std::vector<Transition> transitions;
  std::vector<WorkerRecord> last;  // of the last training's workers
  state::State state;
  TrainingResult result;
};

// Each training where the next of `placements` says, the first too; "fails": its planning does.
ElasticRun run_elastic(comm::Process& process, job::Job job, const std::vector<std::string>& placements,
                       int64_t stop_at = 1000) {
  job.parallel.placement = placements[0];
  size_t next = 0;
  const Succession::Planner planner = [&](const job::Job& now, int frozen, int) {
    const std::string& placement = placements.at(++next);
    if (placement == "refused") throw std::invalid_argument("no plan has so many layers");
    if (placement == "fails") throw std::runtime_error("the planner fell");
    NextPlan made;
    made.job = now;
    made.job.model.frozen = frozen;
    made.job.parallel.placement = placement;
    return made;
  };
  Succession succession(std::make_unique<Training>(job, process, MachineLimit{}), job, process, {},
                        process.rank() == 0 ? planner : Succession::Planner(), {});
  ElasticRun ran;
  Observer observer;
  observer.on_step = [&](const StepReport& step) { ran.losses.push_back(step.metrics.loss()); };
  observer.on_evaluation = [&](double, const Metrics& metrics) { ran.test_losses.push_back(metrics.loss()); };
  observer.on_note = [&](const std::string& note) { ran.notes.push_back(note); };
  observer.wants_to_end = [&] { return static_cast<int64_t>(ran.losses.size()) >= stop_at; };
  ran.result = succession.run(observer);
  ran.state = succession.training().state();
  ran.transitions = succession.transitions();
  if (process.rank() == 0) ran.last = succession.records().back();
  return ran;
}

void expect_same(const ElasticRun& processes, const ElasticRun& threads) {
  EXPECT_EQ(processes.losses, threads.losses);
  EXPECT_EQ(processes.test_losses, threads.test_losses);
  EXPECT_EQ(processes.state.params.size(), threads.state.params.size());
  for (const auto& [name, tensor] : threads.state.params) {
    EXPECT_TRUE(processes.state.params.at(name).data == tensor.data) << name;
  }
  ASSERT_EQ(processes.transitions.size(), threads.transitions.size());
  for (size_t i = 0; i < threads.transitions.size(); ++i) {
    EXPECT_EQ(processes.transitions[i].step, threads.transitions[i].step);
  }
}

// What each process does. Not to be run by itself.
class DISABLED_ElasticProcess : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::getenv(kStarted)) GTEST_SKIP() << "is started by ElasticProcesses";
    process_ = comm::make_mpi_process();
  }
  void expect_bits_of_threads(const ElasticRun& processes, const job::Job& job,
                              const std::vector<std::string>& placements) {
    if (process_->rank() != 0) return;
    const auto alone = comm::make_local_process();
    expect_same(processes, run_elastic(*alone, job, placements));
  }

  std::unique_ptr<comm::Process> process_;
};

TEST_F(DISABLED_ElasticProcess, GoesOn) {
  const std::vector<std::string> placements{"0:0.0:1.0:2", "0:0-1.0:2", "0:0.0:1-2", "0:0.0:1.0:2"};
  const ElasticRun ran = run_elastic(*process_, scheduled_job(), placements);
  expect_bits_of_threads(ran, scheduled_job(), placements);
  if (process_->rank() != 0) return;
  ASSERT_EQ(ran.transitions.size(), 3u);
  EXPECT_GT(ran.transitions[0].moved_bytes, 0);
  EXPECT_EQ(ran.last.size(), static_cast<size_t>(kProcesses));
}

// Which are summed over replicas, like gradients.
TEST_F(DISABLED_ElasticProcess, GoesOnWithRunningStatistics) {
  job::Job job = scheduled_job();
  job.model = {.name = "resnet_small", .classes = 10, .image_size = 8, .channels = 3};
  const std::vector<std::string> placements{"0:0-1.0:2", "0:0.0:1.0:2", "0:0.0:1-2", "0:0-2"};
  const ElasticRun ran = run_elastic(*process_, job, placements);
  expect_bits_of_threads(ran, job, placements);
}

// A plan that cannot be, and one that cannot be made: both times all go on as before. On devices the next is made when
// the one before it is gone.
TEST_F(DISABLED_ElasticProcess, GoesOnAsItIsWhereThereIsNoNext) {
  const bool beside = scheduled_job().device != job::Device::Cuda;
  const std::vector<std::string> placements{"0:0.0:1.0:2", "refused", beside ? "0:0.0:1.0:2.0:3" : "refused",
                                            "0:0-1.0:2"};
  const ElasticRun ran = run_elastic(*process_, scheduled_job(), placements);
  if (process_->rank() != 0) return;
  EXPECT_EQ(ran.losses.size(), 26u);
  ASSERT_EQ(ran.transitions.size(), 1u);
  EXPECT_EQ(ran.transitions[0].step, 24);
  ASSERT_GE(ran.notes.size(), 2u);
  EXPECT_THAT(ran.notes[0], HasSubstr("cannot be frozen: no plan has so many layers"));
  if (beside) EXPECT_THAT(ran.notes[1], HasSubstr("names 4 devices and 3 processes were started"));
}

// The run ends between a decision and its boundary.
TEST_F(DISABLED_ElasticProcess, EndsBeforeItsBoundary) {
  job::Job job = scheduled_job();
  job.elastic.every = {job::Period::Unit::Steps, 24};  // decided six steps ahead
  const ElasticRun ran = run_elastic(*process_, job, {"0:0.0:1.0:2", "0:0-1.0:2"}, /*stop_at=*/19);
  if (process_->rank() != 0) return;
  EXPECT_TRUE(ran.result.stopped);
  EXPECT_LT(ran.result.steps, 26);
}

TEST_F(DISABLED_ElasticProcess, Fails) { run_elastic(*process_, scheduled_job(), {"0:0.0:1.0:2", "fails"}); }

class ElasticProcesses : public cli::MpiTest {
 protected:
  cli::Outcome run_all(const std::string& test) {
    return run_disabled(kProcesses, "ElasticProcess." + test, std::string(kStarted) + "=1");
  }
  void expect_success(const std::string& test) {
    const cli::Outcome outcome = run_all(test);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("[  PASSED  ] 1 test")) << outcome.err;
  }
};

TEST_F(ElasticProcesses, GoOnWithTheBitsOfThreads) { expect_success("GoesOn"); }
TEST_F(ElasticProcesses, GoOnWithRunningStatistics) { expect_success("GoesOnWithRunningStatistics"); }
TEST_F(ElasticProcesses, GoOnAsTheyAreWhereThereIsNoNext) { expect_success("GoesOnAsItIsWhereThereIsNoNext"); }
TEST_F(ElasticProcesses, EndBeforeTheirBoundary) { expect_success("EndsBeforeItsBoundary"); }

TEST_F(ElasticProcesses, EndWhereTheNextFails) {
  const cli::Outcome outcome = run_all("Fails");
  EXPECT_NE(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("the planner fell")) << outcome.err;
}

}  // namespace
}  // namespace millrace::runtime
