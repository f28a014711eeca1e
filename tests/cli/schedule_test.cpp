// millrace schedule: lists of actions from jobs and files, proven and timed.
#include <gmock/gmock.h>

#include <algorithm>

#include "cli/command_runner.h"
#include "cli/tiny_job.h"

namespace millrace::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

const char* const kOneFOneB =
    "# 1F1B on two workers\n"
    "0F0,0F1,,,0B0,,0F2,,0B1,,,0B2\n"
    ",1F0,1B0,1F1,1B1,1F2,1B2\n";

class ScheduleCommand : public CommandTest {
 protected:
  Outcome succeeds(const std::vector<std::string>& arguments) const {
    Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    return outcome;
  }
  std::string refused_file(const std::string& text) const {
    write("lists.csv", text);
    return refusal({"schedule", "check", "lists.csv"});
  }
};

TEST_F(ScheduleCommand, ChecksAFile) {
  write("lists.csv", kOneFOneB);
  EXPECT_EQ(succeeds({"schedule", "check", "lists.csv"}).out,
            "lists.csv: proven: 2 workers, 2 stages, 3 micro-batches, 12 compute actions, 6 messages\n");
}

TEST_F(ScheduleCommand, NamesTheFaultOfAFile) {
  EXPECT_THAT(refused_file("0F0,0B0\n1F0,1C0\n"), HasSubstr("lists.csv:2: cell 2 is \"1C0\""));
  EXPECT_THAT(refused_file("0F0,0B0\n1F0\n"), HasSubstr("backward of micro-batch 0 on stage 1 is missing"));
  EXPECT_THAT(refused_file("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n"),
              AllOf(StartsWith("millrace: lists.csv: worker 0, action"), HasSubstr("waits for ever")));
  EXPECT_THAT(refusal({"schedule", "check", "absent.csv"}), HasSubstr("absent.csv: no such schedule file"));
  EXPECT_THAT(refusal({"schedule", "check", "."}), HasSubstr("is a directory"));
}

TEST_F(ScheduleCommand, SimulatesAFile) {
  write("lists.csv", kOneFOneB);
  const std::string text = succeeds({"schedule", "simulate", "lists.csv", "--json", "out.json"}).out;
  EXPECT_THAT(text, AllOf(HasSubstr("0 FF..BBFBB.BB\n1 .FBBFBBFBB..\n"), HasSubstr("makespan 12, bubble 25.0%")));
  EXPECT_EQ(json("out.json")["makespan"], 12);
  EXPECT_EQ(json("out.json")["peak"], (nlohmann::json{2, 1}));
}

TEST_F(ScheduleCommand, SimulatesWithOtherCosts) {
  write("lists.csv", kOneFOneB);
  succeeds({"schedule", "simulate", "lists.csv", "--f", "2", "--i", "3", "--w", "0.5", "--json", "out.json"});
  EXPECT_EQ(json("out.json")["makespan"], 4 * (2 + 3 + 0.5));
  EXPECT_THAT(refusal({"schedule", "simulate", "lists.csv", "--f", "-1"}), HasSubstr("--f"));
}

TEST_F(ScheduleCommand, RefusesToSimulateWhatNeverEnds) {
  write("lists.csv", "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n");
  EXPECT_THAT(refusal({"schedule", "simulate", "lists.csv", "--json", "out.json"}),
              HasSubstr("the schedule never ends: worker 0 waits"));
  EXPECT_FALSE(exists("out.json"));
}

TEST_F(ScheduleCommand, ShowsAJobAndWritesItsLists) {
  write("job.yaml", tiny_job());
  const std::string text =
      succeeds({"schedule", "show", "job.yaml", "--csv", "lists.csv", "--actions", "--set", "parallel.mode=1f1b",
                "--set", "parallel.placement=0:0.0:1", "--set", "parallel.microbatches=4"})
          .out;
  EXPECT_THAT(text, AllOf(HasSubstr("stage 1 of 2"), HasSubstr("proven: 2 workers, 2 stages, 4 micro-batches"),
                          HasSubstr("SEND act 0>1 m3 to 1"), HasSubstr("makespan 15")));
  EXPECT_EQ(read("lists.csv"), "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n");
  succeeds({"schedule", "check", "lists.csv"});
}

TEST_F(ScheduleCommand, HelpIsEnoughToUseIt) {
  EXPECT_THAT(succeeds({"--help"}).out, HasSubstr("schedule"));
  EXPECT_THAT(succeeds({"schedule", "--help"}).out,
              AllOf(HasSubstr("show"), HasSubstr("check"), HasSubstr("simulate")));
  for (const char* command : {"check", "simulate"}) {
    EXPECT_THAT(succeeds({"schedule", command, "--help"}).out, AllOf(HasSubstr("0F0,0F1,0B0,0B1"), HasSubstr("FILE")));
  }
  EXPECT_THAT(succeeds({"schedule", "show", "--help"}).out, AllOf(HasSubstr("--csv"), HasSubstr("--set")));
}

TEST_F(ScheduleCommand, ExplainsMistypedWords) {
  EXPECT_THAT(refusal({"schedule"}), HasSubstr("schedule: a command is missing; write one of show, check, simulate"));
  EXPECT_THAT(refusal({"schedule", "chekc", "lists.csv"}),
              HasSubstr("there is no command \"chekc\"; did you mean check?"));
  EXPECT_THAT(refusal({"schedule", "simulate", "lists.csv", "--jsn", "x"}),
              HasSubstr("simulate takes no option \"--jsn\"; did you mean --json?"));
  EXPECT_THAT(refusal({"schedule", "check"}), HasSubstr("see millrace schedule check --help"));
}

}  // namespace
}  // namespace millrace::cli
