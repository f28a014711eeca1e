// The texts of mpirun are what Open MPI 4.1 wrote when workers, daemons and connections were ended on two hosts.
#include "cli/failure_report.h"

#include <gtest/gtest.h>

#include <initializer_list>

namespace millrace::cli {
namespace {

constexpr const char* kRule = "--------------------------------------------------------------------------";
constexpr const char* kDied =
    "mpirun noticed that process rank 1 with PID 7176 on node 10.79.0.2 exited on signal 9 (Killed).";
constexpr const char* kNamed =
    "millrace: worker 1 on host-b has not answered for 8 s; last: stage 1, forward, micro-batch 7";

FailureReport report_of(std::initializer_list<const char*> lines) {
  FailureReport report;
  for (const char* line : lines) report.read(line);
  return report;
}

TEST(FailureReport, TheLastOwnLineIsTheReason) {
  const FailureReport report = report_of({"step 3", "millrace: first", "millrace: second", "millrace", ""});
  EXPECT_EQ(report.reason(), "second");
  EXPECT_EQ(report.lost_by_launcher(), "");
}

TEST(FailureReport, WhoWasLostIsTheReasonBeforeAnythingElse) {
  const FailureReport report = report_of({"millrace: first", kNamed, "millrace: last", kDied});
  EXPECT_EQ(report.reason(), "worker 1 on host-b has not answered for 8 s; last: stage 1, forward, micro-batch 7");
  EXPECT_EQ(report.lost_by_launcher(), "") << "it is named already";
}

TEST(FailureReport, MpirunKnowsWhoDied) {
  EXPECT_EQ(
      report_of({kRule, "Primary job  terminated normally, but 1 process returned",
                 "a non-zero exit code. Per user-direction, the job has been aborted.", kRule, kRule, kDied, kRule})
          .lost_by_launcher(),
      "worker 1 on 10.79.0.2 died by SIGKILL");
  EXPECT_EQ(
      report_of({"mpiexec noticed that process rank 12 with PID 0 on node vm exited on signal 11."}).lost_by_launcher(),
      "worker 12 on vm died by SIGSEGV");
}

TEST(FailureReport, TheFirstToDieIsTheOneWhoWasLost) {
  EXPECT_EQ(report_of({kDied, "mpirun noticed that process rank 0 with PID 3 on node a exited on signal 6 (Aborted)."})
                .lost_by_launcher(),
            "worker 1 on 10.79.0.2 died by SIGKILL");
}

TEST(FailureReport, MpirunKnowsWhichHostIsOutOfReach) {
  EXPECT_EQ(report_of({"ORTE has lost communication with a remote daemon.", "",
                       "  HNP daemon   : [[23795,0],0] on node host-a",
                       "  Remote daemon: [[23795,0],1] on node 10.79.0.2", ""})
                .lost_by_launcher(),
            "workers on 10.79.0.2 are out of reach of mpirun");
}

TEST(FailureReport, APeerThatHungUpIsTheOneWhoWasLost) {
  const auto hung_up = {"An MPI communication peer process has unexpectedly disconnected.  This",
                        "  Local host: host-a",
                        "  Local PID:  7175",
                        "  Peer host:  host-b",
                        "mpirun detected that one or more processes exited with non-zero status, thus causing",
                        "  Process name: [[23795,1],0]",
                        "  Exit code:    1"};
  EXPECT_EQ(report_of(hung_up).lost_by_launcher(), "worker on host-b broke its connections off");
  FailureReport failed = report_of(hung_up);
  failed.read("millrace: run/metrics.jsonl: cannot be written: Is a directory");
  EXPECT_EQ(failed.lost_by_launcher(), "") << "it failed by itself, and says why";
}

TEST(FailureReport, OneThatEndsWithoutAWordIsNamed) {
  EXPECT_EQ(report_of({"  Process name: [[23795,1],3]", "  Exit code:    1"}).lost_by_launcher(),
            "worker 3 ended without a word");
}

TEST(FailureReport, LinesThatAreCutAreNobody) {
  for (const char* line :
       {"mpirun noticed that process rank ", "  Remote daemon: [[23795,0],1]", "  Process name: [[237"}) {
    EXPECT_EQ(report_of({line}).lost_by_launcher(), "") << line;
  }
}

TEST(FailureReport, TheNumberOfALostWorkerIsRead) {
  EXPECT_EQ(lost_worker("worker 12 on b died by SIGKILL"), 12);
  EXPECT_EQ(lost_worker("worker 0 on b has not answered for 8 s; last: starting"), 0);
  for (const char* other :
       {"worker 1 on b is well", "workers on b died", "worker x on b died", "a worker 1 on b died"}) {
    EXPECT_EQ(lost_worker(other), std::nullopt) << other;
  }
}

}  // namespace
}  // namespace millrace::cli
