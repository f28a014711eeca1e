// A supervised training, played by a script: each start does what the test wrote for it. Another script stands in for
// mpirun.
#include "cli/supervise.h"

#include <fcntl.h>
#include <gmock/gmock.h>
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
#include <thread>

#include "cli/launch_command.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;
using testing::SizeIs;
using namespace std::chrono_literals;

std::string read_all(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<std::string> lines_in(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

size_t count_descriptors() { return static_cast<size_t>(std::distance(fs::directory_iterator("/proc/self/fd"), {})); }

bool lives(pid_t pid) {
  const std::string stat = read_all("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && stat.compare(name_end + 2, 1, "Z") != 0;
}

bool eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 1000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(5ms);
  }
  return false;
}

// Standard error goes to a file while this lives.
class ErrorsTo {
 public:
  explicit ErrorsTo(const fs::path& file) : before_(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3)) {
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
constexpr const char* kProgram = R"script(#!/bin/sh
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
constexpr const char* kLauncher = R"script(#!/bin/sh
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

class SuperviseTest : public testing::Test {
 protected:
  SuperviseTest() {
    std::string name = (fs::temp_directory_path() / "millrace-supervise-XXXXXX").string();
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
  ~SuperviseTest() override { fs::remove_all(root_); }

  fs::path run() const { return root_ / "run"; }
  void write(const std::string& file, const std::string& text) const { std::ofstream(root_ / file) << text; }
  void write_script(const std::string& file, const std::string& text) const {
    write(file, text);
    fs::permissions(root_ / file, fs::perms::owner_all);
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
    return eventually([&] { return fs::exists(root_ / ("trains-" + std::to_string(start))); });
  }

  int count_starts() const { return fs::exists(root_ / "calls") ? std::stoi(read_all(root_ / "calls")) : 0; }
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
      EXPECT_FALSE(fs::exists(run()));
      return error.what();
    }
    return "not refused";
  }

  fs::path root_;
  Supervision how_;
  std::vector<std::string> arguments_;
};

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
    EXPECT_FALSE(lives(std::stoi(pid))) << pid;
    if (lives(std::stoi(pid))) ::kill(std::stoi(pid), SIGKILL);
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
  const size_t before = count_descriptors();
  starts({"exit 1", count + "$dir/descriptors; exit 0"});
  how_.launcher = (root_ / "launcher").string();
  how_.hosts = "a,b:2";
  how_.elastic = true;
  EXPECT_EQ(supervise_here(), 0);
  EXPECT_EQ(count_descriptors(), before);
  EXPECT_EQ(read_all(root_ / "descriptors"), read_all(root_ / "usual"));
}

// Not by the script: shells set their mask themselves.
TEST_F(SuperviseTest, AChildHoldsNoSignalBack) {
  const auto held_in = [](const std::string& status) {
    const size_t at = status.find("SigBlk:");
    return status.substr(at, status.find('\n', at) - at);
  };
  const std::string held_here = held_in(read_all("/proc/thread-self/status"));
  EXPECT_EQ(supervise(how_, "cp", {"/proc/self/status", (root_ / "status").string()}, run()), 0);
  EXPECT_EQ(held_in(read_all(root_ / "status")), held_here);
  EXPECT_EQ(held_in(read_all("/proc/thread-self/status")), held_here) << "nor does the caller afterwards";
}

class AskedToEnd : public SuperviseTest, public testing::WithParamInterface<int> {};

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

TEST_F(SuperviseTest, OnlyTheProgramItselfIsAskedToSave) {
  // As under mpirun, which passes it on to the workers in its own way.
  starts({"sh -c 'trap \"echo asked > $dir/asked\" USR1; while :; do sleep 0.02; done' & train"});
  const pid_t supervisor = supervise_elsewhere();
  ASSERT_TRUE(start_trains(1));
  ::kill(supervisor, SIGUSR1);
  EXPECT_EQ(code_of(supervisor), 75);
  EXPECT_FALSE(fs::exists(root_ / "asked"));
}

TEST_F(SuperviseTest, ASecondSignalEndsAtOnce) {
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

TEST_F(SuperviseTest, ASignalBetweenStartsEndsIt) {
  how_.backoff_s = 60;
  starts({"save 3; exit 1"});
  const pid_t supervisor = supervise_elsewhere();
  ASSERT_TRUE(eventually([&] { return !said().empty(); }));
  ::kill(supervisor, SIGTERM);
  EXPECT_EQ(code_of(supervisor), 75);
}

TEST_F(SuperviseTest, AChildThatSomebodyElseAskedIsNotStartedAgain) {
  starts({"save 3; exit 75"});
  EXPECT_EQ(supervise_here(), 75);
  EXPECT_EQ(count_starts(), 1);
}

TEST_F(SuperviseTest, TheChildEndsWithItsSupervisor) {
  starts({"echo $$ > $dir/pid; train"});
  const pid_t supervisor = supervise_elsewhere();
  ASSERT_TRUE(start_trains(1));
  ::kill(supervisor, SIGKILL);
  EXPECT_EQ(code_of(supervisor), 128 + SIGKILL);
  const pid_t child = std::stoi(read_all(root_ / "pid"));
  EXPECT_TRUE(eventually([&] { return !lives(child); }));
  if (lives(child)) ::kill(child, SIGKILL);
  EXPECT_TRUE(fs::exists(run() / "checkpoints/step-00000050")) << "it had the time to save";
}

class LaunchedTest : public SuperviseTest {
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
  ::kill(
      std::stoi(read_all("/proc/" + std::to_string(supervisor) + "/task/" + std::to_string(supervisor) + "/children")),
      SIGKILL);
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

TEST_F(LaunchedTest, AProgramThatIsNotThereIsTheUsersMistake) {
  how_.launcher = "no-such-mpirun";
  how_.workers = 2;
  EXPECT_THAT(refusal(), "no-such-mpirun: cannot be started: No such file or directory");
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

TEST(LaunchCommand, WordsAreThoseOfAShell) {
  EXPECT_THAT(split_words(" mpirun  -x 'A B' \"c\\\"d\" e\\ f '' g'h'\"i\" '\\n'"),
              ElementsAre("mpirun", "-x", "A B", "c\"d", "e f", "", "ghi", "\\n"));
}

}  // namespace
}  // namespace millrace::cli
