// What a supervisor makes of the starts that fail: again from the newest checkpoint, or not.
#include "cli/supervise.h"

#include <gmock/gmock.h>

#include "cli/process_table.h"
#include "cli/supervised_script.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::SizeIs;

class SuperviseTest : public SupervisedScript {};

TEST_F(SuperviseTest, SuccessIsPassedOn) {
  starts({"step 0; step 1; exit 0"});
  EXPECT_EQ(supervise_here(), 0);
  EXPECT_EQ(arguments_of(1), arguments_);
  EXPECT_EQ(errors(), "");
  const auto records = history();
  ASSERT_THAT(records, SizeIs(1));
  EXPECT_EQ(records[0].at("exit_code"), 0);
  EXPECT_EQ(records[0].at("last_step"), 1);
  EXPECT_EQ(records[0].at("workers"), 1);
}

TEST_F(SuperviseTest, AFaultIsFollowedByAStartFromTheNewestCheckpoint) {
  starts({"step 0; save 200; save 100; step 240; kill -9 $$", "step 241; exit 0"});
  EXPECT_EQ(supervise_here(), 0);
  EXPECT_THAT(arguments_of(2),
              ElementsAre("train", "--resume", run().string(), "--fallback", "--set", "batch=8", "--plan=plan.json"));
  EXPECT_THAT(said(), ElementsAre(MatchesRegex("attempt 1 died by SIGKILL after [0-9.]+ s at step 240; going on from "
                                               "step 200 in 0.01 s \\(restart 1 of 3\\)"),
                                  "1 restart, see " + (run() / "restarts.jsonl").string()));
  const auto records = history();
  ASSERT_THAT(records, SizeIs(2));
  EXPECT_EQ(records[0].at("attempt"), 1);
  EXPECT_EQ(records[0].at("signal"), "SIGKILL");
  EXPECT_EQ(records[0].at("reason"), "died by SIGKILL");
  EXPECT_EQ(records[0].at("first_step"), 0);
  EXPECT_EQ(records[0].at("last_step"), 240);
  EXPECT_GT(records[0].at("began"), 1.6e9);
  EXPECT_FALSE(records[0].contains("exit_code"));
  EXPECT_EQ(records[1].at("exit_code"), 0);
  EXPECT_EQ(records[1].at("first_step"), 200);
}

TEST_F(SuperviseTest, WithoutACheckpointItStartsFromTheBeginning) {
  // As the program does, it removes what the run held.
  starts({"step 3; exit 1", "rm -r $run; exit 1", "step 0; exit 0"});
  EXPECT_EQ(supervise_here(), 0);
  std::vector<std::string> expected = arguments_;
  expected.emplace_back("--overwrite");
  EXPECT_EQ(arguments_of(2), expected);
  EXPECT_THAT(said()[0], AllOf(HasSubstr("failed with exit code 1"), HasSubstr("; starting from the beginning in ")));
  EXPECT_THAT(said()[1], HasSubstr(" before its first step; "));
  EXPECT_THAT(history(), SizeIs(3)) << "those that were removed are written again";
}

TEST_F(SuperviseTest, CheckpointsOfARunToOverwriteDoNotCount) {
  fs::create_directories(run() / "checkpoints/step-00000900");
  arguments_.emplace_back("--overwrite");
  starts({"exit 1", "rm -r $run; save 5; exit 1", "exit 0"});
  EXPECT_EQ(supervise_here(), 0);
  EXPECT_EQ(arguments_of(2), arguments_);
  EXPECT_THAT(arguments_of(3), testing::Contains("--resume"));
}

TEST_F(SuperviseTest, ARunThatIsResumedGoesOnFromItsOwnCheckpoints) {
  fs::create_directories(run() / "checkpoints/step-00000900");
  arguments_ = {"train", "--resume", run().string(), "--json", "summary.json"};
  starts({"exit 1", "exit 0"});
  EXPECT_EQ(supervise_here(), 0);
  EXPECT_EQ(arguments_of(1), arguments_);
  EXPECT_THAT(arguments_of(2),
              ElementsAre("train", "--resume", run().string(), "--fallback", "--json", "summary.json"));
  EXPECT_EQ(history()[0].at("first_step"), 900);
}

TEST_F(SuperviseTest, WhatDiesAfterItsLastFileIsDone) {
  const std::string whole = R"(echo '{"steps": 9, "stopped": false, "diverged": false}' > $run/summary.json; )";
  starts({"step 0; save 5; kill -9 $$", "step 8; " + whole + "kill -9 $$"});
  EXPECT_EQ(supervise_here(), 0);
  EXPECT_EQ(count_starts(), 2);
  EXPECT_EQ(said()[1],
            "attempt 2 died by SIGKILL when all was done and written; see it with: millrace report " + run().string());
}

TEST_F(SuperviseTest, TheLastFileOfAnEarlierTrainingDoesNotCount) {
  fs::create_directories(run() / "checkpoints/step-00000009");
  write("run/summary.json", R"({"steps": 9, "stopped": false, "diverged": false})");
  arguments_ = {"train", "--resume", run().string(), "--set", "steps=20"};
  const std::string stopped = R"(echo '{"steps": 12, "stopped": true, "diverged": false}' > $run/summary.json; )";
  starts({"kill -9 $$", "step 10; save 12; " + stopped + "kill -9 $$", "exit 0"});
  EXPECT_EQ(supervise_here(), 0);
  EXPECT_EQ(count_starts(), 3);
}

TEST_F(SuperviseTest, TheUsersMistakeIsNotTriedAgain) {
  starts({"echo 'millrace: job.yaml: batch is missing' >&2; exit 2"});
  EXPECT_EQ(supervise_here(), 2);
  EXPECT_EQ(count_starts(), 1);
  EXPECT_EQ(errors(), "millrace: job.yaml: batch is missing\n");
  EXPECT_FALSE(fs::exists(run()));
}

TEST_F(SuperviseTest, GivesUpWithItsHistory) {
  how_.restarts = 2;
  const std::string lost = "echo 'millrace: worker 1 on b died; last: stage 1, forward, micro-batch 12' >&2; exit 1";
  starts({"step 7; save 5; " + lost, "exit 3", "kill -SEGV $$"});
  EXPECT_EQ(supervise_here(), 1);
  EXPECT_EQ(count_starts(), 3);
  EXPECT_EQ(said().back(), "gave up after 2 restarts: died by SIGSEGV");
  const std::string text = errors();
  EXPECT_THAT(text, HasSubstr("attempt"));
  const std::string time = "[0-9-]+ [0-9:]+ +[0-9.]+ +";
  EXPECT_THAT(lines_in(text), testing::IsSupersetOf({
                                  MatchesRegex(" *attempt +began +seconds +step +what happened"),
                                  MatchesRegex(" *1 +" + time + "7 +worker 1 on b died; last: stage 1, .*"),
                                  MatchesRegex(" *2 +" + time + "- +failed with exit code 3"),
                                  MatchesRegex(" *3 +" + time + "- +died by SIGSEGV"),
                              }));
  EXPECT_THAT(history(), SizeIs(3));
}

TEST_F(SuperviseTest, WaitsLongerForEachStartThatComesNoFurther) {
  how_.restarts = 5;
  how_.backoff_s = 0.02;
  starts({"exit 1", "exit 1", "exit 1", "step 1; exit 1", "exit 1", "exit 0"});
  EXPECT_EQ(supervise_here(), 0);
  std::vector<std::string> waits;
  for (const std::string& line : said()) {
    const size_t at = line.find(" in ");
    if (at != std::string::npos) waits.push_back(line.substr(at + 4, line.find(" s", at) - at - 4));
  }
  EXPECT_THAT(waits, ElementsAre("0.02", "0.04", "0.08", "0.02", "0.04"));
}

TEST_F(SuperviseTest, OneThatMakesNoStepHangsAndIsEnded) {
  how_.hang_after_s = 0.8;
  // Steps keep it alive for longer than that.
  starts({"trap '' TERM; save 4; for i in 1 2 3 4 5 6 7 8 9; do step $i; sleep 0.1; done; while :; do sleep 0.02; done",
          "exit 0"});
  how_.grace_s = 0.2;
  EXPECT_EQ(supervise_here(), 0);
  const auto records = history();
  ASSERT_THAT(records, SizeIs(2));
  EXPECT_EQ(records[0].at("reason"), "hung: no step for 0.8 s");
  EXPECT_EQ(records[0].at("signal"), "SIGKILL");
  EXPECT_EQ(records[0].at("last_step"), 9);
  EXPECT_GT(records[0].at("seconds"), 1.5);
  EXPECT_EQ(said()[0], "attempt 1 hung: no step for 0.8 s: ending it");
  EXPECT_THAT(said()[1], HasSubstr("attempt 1 hung: no step for 0.8 s after "));
}

TEST_F(SuperviseTest, OneThatIsStoppedHangs) {
  how_.hang_after_s = 0.6;
  // Asked to end it can still save: that makes it no less a fault.
  starts({"trap 'save 9; exit 75' TERM; step 1; kill -STOP $$; sleep 5", "exit 0"});
  EXPECT_EQ(supervise_here(), 0);
  EXPECT_EQ(history()[0].at("reason"), "hung: no step for 0.6 s (stopped)");
  EXPECT_EQ(history()[0].at("exit_code"), 75);
  EXPECT_THAT(said()[1], HasSubstr("going on from step 9"));
}

TEST_F(SuperviseTest, NothingThatAStartLeavesBehindLivesOn) {
  // One in its group, one in a session of its own; neither ends when asked.
  const std::string stay = "trap \"\" TERM HUP; echo $$ >> \"$0\"; while :; do sleep 0.1; done";
  const std::string leave = "sh -c '" + stay + "' \"$dir/left\" & setsid sh -c '" + stay +
                            "' \"$dir/left\" & "
                            "while [ \"$(cat \"$dir/left\" 2>/dev/null | wc -l)\" -lt $1 ]; do sleep 0.01; done";
  starts({"set 2; " + leave + "; kill -9 $$", "set 4; " + leave + "; exit 0"});
  EXPECT_EQ(supervise_here(), 0);
  const auto left = lines_in(read_all(root_ / "left"));
  ASSERT_THAT(left, SizeIs(4));
  for (const std::string& pid : left) {
    EXPECT_FALSE(is_running(std::stoi(pid))) << pid;
    if (is_running(std::stoi(pid))) ::kill(std::stoi(pid), SIGKILL);
  }
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left, or its end unnoticed";
}

TEST_F(SuperviseTest, StandardErrorIsPassedOnByteByByte) {
  starts({R"(printf 'step 1\r\033[Kstep 2\r' >&2; printf '\033[Kmillrace: a \377 b\nno end' >&2; exit 1)", "exit 0"});
  EXPECT_EQ(supervise_here(), 0);
  EXPECT_THAT(errors(),
              testing::StartsWith("step 1\r\x1b[Kstep 2\r\x1b[Kmillrace: a \xff b\nno end\nmillrace: attempt"));
  EXPECT_EQ(history()[0].at("reason"), "a \xef\xbf\xbd b") << "JSON has no other bytes";
}

TEST_F(SuperviseTest, AReasonNeedsNoEndOfItsLine) {
  starts({"printf 'millrace: out of memory' >&2; exit 1", "exit 0"});
  EXPECT_EQ(supervise_here(), 0);
  EXPECT_EQ(history()[0].at("reason"), "out of memory");
}

TEST_F(SuperviseTest, ProgressFlowsAtOnce) {
  starts({"printf 'half a line\\r' >&2; train"});
  const pid_t supervisor = supervise_elsewhere();
  EXPECT_TRUE(eventually([&] { return errors() == "half a line\r"; })) << errors();
  EXPECT_TRUE(start_trains(1));
  ::kill(supervisor, SIGTERM);
  EXPECT_EQ(code_of(supervisor), 75);
}

TEST_F(SuperviseTest, LeavesNoDescriptorOpenAndGivesNone) {
  const std::string count = "ls /proc/self/fd | wc -l > ";
  ASSERT_EQ(std::system((count + (root_ / "usual").string()).c_str()), 0);
  const int64_t before = count_descriptors(::getpid());
  starts({"exit 1", count + "$dir/descriptors; exit 0"});
  how_.launcher = (root_ / "launcher").string();
  how_.hosts = "a,b:2";
  how_.elastic = true;
  EXPECT_EQ(supervise_here(), 0);
  EXPECT_EQ(count_descriptors(::getpid()), before);
  EXPECT_EQ(read_all(root_ / "descriptors"), read_all(root_ / "usual"));
}

TEST_F(SuperviseTest, HoldsNoMoreDescriptorsForEveryRestart) {
  constexpr int kRestarts = 20;
  how_.restarts = kRestarts;
  how_.backoff_s = 0;
  how_.launcher = (root_ / "launcher").string();
  how_.hosts = "a,b:2";
  how_.elastic = true;
  const std::string count = "ls /proc/$PPID/fd | wc -l >> $dir/descriptors; ";
  std::vector<std::string> scripts(kRestarts, count + "exit 1");
  scripts.push_back(count + "exit 0");
  starts(scripts);
  const int64_t before = count_descriptors(::getpid());
  EXPECT_EQ(supervise_here(), 0);
  EXPECT_EQ(count_descriptors(::getpid()), before);
  std::vector<int> counts;
  for (const std::string& line : lines_in(read_all(root_ / "descriptors"))) counts.push_back(std::stoi(line));
  ASSERT_THAT(counts, SizeIs(kRestarts + 1));
  const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
  EXPECT_LE(*most - *least, 4) << "those of a child that was just started may be open for a moment";
}

TEST_F(SuperviseTest, RefusesWhatCannotWork) {
  how_.elastic = true;
  EXPECT_THAT(refusal(), AllOf(HasSubstr("--elastic: "), HasSubstr("--hosts a:2,b:2")));
  how_.workers = 2;
  how_.restarts = 0;
  EXPECT_THAT(refusal(), AllOf(HasSubstr("--elastic: "), HasSubstr("--restarts 3")));
  how_.restarts = 1;
  how_.hosts = "a";
  EXPECT_THAT(refusal(), HasSubstr("--hosts a with --workers 2: "));
  how_.workers = 0;
  for (const char* hosts : {"a:", "a:0", "a:x", ":2", "a,,b", ",", "a:2:3", "a,a", "-a", "a b"}) {
    how_.hosts = hosts;
    EXPECT_THAT(refusal(), testing::StartsWith("--hosts \"" + how_.hosts + "\": "));
  }
  how_.hosts = "a";
  how_.launcher = "mpirun 'x";
  EXPECT_THAT(refusal(), HasSubstr("the quote ' is not closed"));
  how_.launcher = " ";
  EXPECT_THAT(refusal(), HasSubstr("names no program"));
}

TEST_F(SuperviseTest, RefusesToRunUnderMpirun) {
  ::setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
  EXPECT_THAT(refusal(), HasSubstr("start millrace without mpirun and name the hosts: --hosts a:2,b:2"));
  ::unsetenv("OMPI_COMM_WORLD_SIZE");
}

}  // namespace
}  // namespace millrace::cli
