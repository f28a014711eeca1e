// A supervisor that is asked to end: what is trained is saved first.
#include "cli/process_table.h"
#include "cli/supervised_script.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

class SuperviseSignals : public SupervisedScript {};

// Not by the script: shells set their mask themselves.
TEST_F(SuperviseSignals, AChildHoldsNoSignalBack) {
  const auto held_in = [](const std::string& status) {
    const size_t at = status.find("SigBlk:");
    return status.substr(at, status.find('\n', at) - at);
  };
  const std::string held_here = held_in(read_all("/proc/thread-self/status"));
  EXPECT_EQ(supervise(how_, "cp", {"/proc/self/status", (root_ / "status").string()}, run()), 0);
  EXPECT_EQ(held_in(read_all(root_ / "status")), held_here);
  EXPECT_EQ(held_in(read_all("/proc/thread-self/status")), held_here) << "nor does the caller afterwards";
}

class AskedToEnd : public SupervisedScript, public testing::WithParamInterface<int> {};

TEST_P(AskedToEnd, SavesFirst) {
  starts({"train"});
  const pid_t supervisor = supervise_elsewhere();
  ASSERT_TRUE(start_trains(1));
  ::kill(supervisor, GetParam());
  EXPECT_EQ(code_of(supervisor), 75);
  EXPECT_EQ(count_starts(), 1);
  EXPECT_TRUE(fs::exists(run() / "checkpoints/step-00000050"));
  EXPECT_EQ(history().at(0).at("exit_code"), 75);
}

INSTANTIATE_TEST_SUITE_P(Supervise, AskedToEnd, testing::Values(SIGTERM, SIGINT, SIGUSR1));

TEST_F(SuperviseSignals, OnlyTheProgramItselfIsAskedToSave) {
  // As under mpirun, which passes it on to the workers in its own way.
  starts({"sh -c 'trap \"echo asked > $dir/asked\" USR1; while :; do sleep 0.02; done' & train"});
  const pid_t supervisor = supervise_elsewhere();
  ASSERT_TRUE(start_trains(1));
  ::kill(supervisor, SIGUSR1);
  EXPECT_EQ(code_of(supervisor), 75);
  EXPECT_FALSE(fs::exists(root_ / "asked"));
}

TEST_F(SuperviseSignals, ASecondSignalEndsAtOnce) {
  how_.grace_s = 0.1;
  starts({"trap '' USR1 TERM; step 1; : > $dir/trains-1; while :; do sleep 0.02; done"});
  const pid_t supervisor = supervise_elsewhere();
  ASSERT_TRUE(start_trains(1));
  ::kill(supervisor, SIGUSR1);
  ASSERT_TRUE(eventually([&] { return !said().empty(); }));
  ::kill(supervisor, SIGINT);
  EXPECT_EQ(code_of(supervisor), 128 + SIGINT);
  EXPECT_EQ(history().at(0).at("signal"), "SIGKILL");
}

TEST_F(SuperviseSignals, ASignalBetweenStartsEndsIt) {
  how_.backoff_s = 60;
  starts({"save 3; exit 1"});
  const pid_t supervisor = supervise_elsewhere();
  ASSERT_TRUE(eventually([&] { return !said().empty(); }));
  ::kill(supervisor, SIGTERM);
  EXPECT_EQ(code_of(supervisor), 75);
}

TEST_F(SuperviseSignals, AChildThatSomebodyElseAskedIsNotStartedAgain) {
  starts({"save 3; exit 75"});
  EXPECT_EQ(supervise_here(), 75);
  EXPECT_EQ(count_starts(), 1);
}

TEST_F(SuperviseSignals, TheChildEndsWithItsSupervisor) {
  starts({"echo $$ > $dir/pid; train"});
  const pid_t supervisor = supervise_elsewhere();
  ASSERT_TRUE(start_trains(1));
  ::kill(supervisor, SIGKILL);
  EXPECT_EQ(code_of(supervisor), 128 + SIGKILL);
  const pid_t child = std::stoi(read_all(root_ / "pid"));
  EXPECT_TRUE(eventually([&] { return !is_running(child); }));
  if (is_running(child)) ::kill(child, SIGKILL);
  EXPECT_TRUE(fs::exists(run() / "checkpoints/step-00000050")) << "it had the time to save";
}

}  // namespace
}  // namespace millrace::cli
