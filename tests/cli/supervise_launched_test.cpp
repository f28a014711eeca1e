// A supervised training of several processes: which hosts take part, who was lost.
#include <gmock/gmock.h>

#include "cli/process_table.h"
#include "cli/supervised_script.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;
using namespace std::chrono_literals;

class LaunchedTest : public SupervisedScript {
 protected:
  LaunchedTest() { how_.launcher = "'" + (root_ / "launcher").string() + "' --quiet"; }

  std::vector<std::string> launches() const { return lines_in(read_all(root_ / "launches")); }
  void lose(const std::string& host) const { write("lost-" + host, ""); }
  void find(const std::string& host) const { fs::remove(root_ / ("lost-" + host)); }
  static bool plans_anew(const std::vector<std::string>& arguments) {
    return std::find(arguments.begin(), arguments.end(), "parallel.mode=auto") != arguments.end();
  }
};

TEST_F(LaunchedTest, HostsAndWorkersAreTheLaunchers) {
  starts({"exit 1", "exit 0"});
  how_.hosts = "a:2,b";
  EXPECT_EQ(supervise_here(), 0);
  EXPECT_THAT(launches(), ElementsAre("3 a:2,b:1", "3 a:2,b:1"));
  EXPECT_EQ(arguments_of(1), arguments_);
  EXPECT_EQ(history()[0].at("workers"), 3);
}

TEST_F(LaunchedTest, ALostHostIsLeftOutAndTakenBack) {
  how_.hosts = "a:2,b:1,c:1";
  how_.elastic = true;
  how_.probe_every_s = 0.1;
  lose("b");
  lose("c");
  starts({"train 10", "train 60", "step 70; exit 0"});
  const pid_t supervisor = supervise_elsewhere();
  ASSERT_TRUE(start_trains(1));
  find("c");  // not all yet
  std::this_thread::sleep_for(300ms);
  EXPECT_EQ(count_starts(), 1);
  find("b");
  ASSERT_TRUE(start_trains(2));
  lose("b");
  ::kill(children_of(supervisor).at(0), SIGKILL);
  EXPECT_EQ(code_of(supervisor), 0);
  EXPECT_THAT(launches(), ElementsAre("2 a:2", "4 a:2,b:1,c:1", "3 a:2,c:1"));
  EXPECT_TRUE(plans_anew(arguments_of(1)));
  EXPECT_FALSE(plans_anew(arguments_of(2)));
  EXPECT_TRUE(plans_anew(arguments_of(3)));
  // What a reduced crew saved is its own plan: the job's is asked for by name.
  EXPECT_THAT(arguments_of(2), ElementsAre("train", "job.yaml", "--resume", run().string(), "--fallback", "--set",
                                           "batch=8", "--plan=plan.json"));
  EXPECT_THAT(said(),
              ElementsAre("no answer from b, c: going on with 2 of 4 workers, on a:2",
                          "b, c answer again: saving, then going on with all 4 workers",
                          "all hosts answer: going on with 4 workers, on a:2,b:1,c:1",
                          MatchesRegex("attempt 2 died by SIGKILL .* at step 60; .* \\(restart 1 of 3\\)"),
                          "no answer from b: going on with 3 of 4 workers, on a:2,c:1", HasSubstr("2 restarts, see ")));
}

TEST_F(LaunchedTest, NoHostAtAllIsAFault) {
  how_.hosts = "a,b";
  how_.elastic = true;
  how_.restarts = 1;
  lose("a");
  lose("b");
  EXPECT_EQ(supervise_here(), 1);
  EXPECT_EQ(count_starts(), 0);
  EXPECT_THAT(said(), ElementsAre("attempt 1 found no host that answers; starting in 0.01 s (restart 1 of 1)",
                                  "gave up after 1 restart: no host answers: a, b"));
}

TEST_F(LaunchedTest, HostsThatAreLostAgainMeanwhileAreAFault) {
  how_.hosts = "a,b";
  how_.elastic = true;
  how_.restarts = 1;
  how_.probe_every_s = 0.05;
  lose("b");
  starts(
      {"trap ': > $dir/lost-a; : > $dir/lost-b; save 5; exit 75' USR1; step 1; rm $dir/lost-b; "
       "while :; do sleep 0.02; done"});
  EXPECT_EQ(supervise_here(), 1);
  EXPECT_EQ(count_starts(), 1);
  EXPECT_EQ(history().at(0).at("reason"), "saved and ended for hosts that are back");
  EXPECT_EQ(said().back(), "gave up after 1 restart: no host answers: a, b");
}

TEST_F(LaunchedTest, AWorkerThatIsLostTwiceInARowIsOneTooMany) {
  how_.workers = 3;
  how_.elastic = true;
  const auto lost = [](int worker) {
    return "step 1; echo 'millrace: worker " + std::to_string(worker) + " on here died; last: starting' >&2; exit 137";
  };
  starts({lost(2), lost(1), lost(1), "exit 0"});
  EXPECT_EQ(supervise_here(), 0);
  EXPECT_THAT(launches(), ElementsAre("3 -", "3 -", "3 -", "2 -"));
  EXPECT_FALSE(plans_anew(arguments_of(3)));
  EXPECT_TRUE(plans_anew(arguments_of(4)));
  EXPECT_THAT(errors(), HasSubstr("attempt 1 failed with exit code 137 (SIGKILL) after "));
  EXPECT_THAT(errors(), HasSubstr("millrace: worker 1 was lost twice in a row: going on with 2 of 3 workers\n"));
}

// Of Open MPI 4, when a worker was killed: those who are left are ended, most often after they have told.
constexpr const char* kNoticed =
    "echo 'mpirun noticed that process rank 1 with PID 0 on node b exited on signal 9 (Killed).' >&2; ";

TEST_F(LaunchedTest, WhoWasLostIsNamedWhereTheOthersCouldNot) {
  how_.hosts = "a,b";
  starts({std::string("step 7; save 5; ") + kNoticed + "exit 137", "exit 0"});
  EXPECT_EQ(supervise_here(), 0);
  EXPECT_THAT(said(), ElementsAre("worker 1 on b died by SIGKILL",
                                  MatchesRegex("attempt 1 failed with exit code 137 \\(SIGKILL\\) .* at step 7; .*"),
                                  HasSubstr("1 restart, see ")));
  EXPECT_EQ(history().at(0).at("reason"), "worker 1 on b died by SIGKILL");
}

TEST_F(LaunchedTest, WhoWasLostIsNamedOnce) {
  how_.hosts = "a,b";
  starts({std::string("echo 'millrace: worker 1 on b died; last: stage 1, forward, micro-batch 3' >&2; ") + kNoticed +
              "exit 137",
          "exit 0"});
  EXPECT_EQ(supervise_here(), 0);
  EXPECT_THAT(said(), ElementsAre("worker 1 on b died; last: stage 1, forward, micro-batch 3",
                                  HasSubstr("attempt 1 failed"), HasSubstr("1 restart, see ")));
  EXPECT_EQ(history().at(0).at("reason"), "worker 1 on b died; last: stage 1, forward, micro-batch 3");
}

TEST_F(LaunchedTest, NobodyIsLostWhereAllWereEndedByRequest) {
  how_.hosts = "a,b";
  how_.hang_after_s = 0.3;
  how_.restarts = 0;
  starts({std::string("trap \"") + kNoticed + "exit 137\" TERM; while :; do sleep 0.02; done"});
  EXPECT_EQ(supervise_here(), 1);
  EXPECT_THAT(said(), testing::Not(testing::Contains(testing::StartsWith("worker "))));
  EXPECT_EQ(history().at(0).at("reason"), "hung: no step for 0.3 s");
}

TEST_F(LaunchedTest, AProgramThatIsNotThereIsTheUsersMistake) {
  how_.launcher = "no-such-mpirun";
  how_.workers = 2;
  EXPECT_THAT(refusal(), "no-such-mpirun: cannot be started: No such file or directory");
}

}  // namespace
}  // namespace millrace::cli
