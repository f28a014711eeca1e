// What a user at a terminal sees: progress in one line, and an end by Ctrl-C that leaves no mess.
#include <gmock/gmock.h>
#include <sys/ioctl.h>

#include <fstream>
#include <memory>

#include "cli/command_runner.h"
#include "cli/tiny_job.h"

namespace millrace::cli {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kRedraw = "\r\x1b[K";

class Terminal : public CommandTest {
 protected:
  Terminal() {
    write("job.yaml", tiny_job());
    ::setenv("TERM", "xterm", 1);
    ::setenv("LC_ALL", "C", 1);
    screen_ = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (screen_ < 0 || ::grantpt(screen_) != 0 || ::unlockpt(screen_) != 0) throw std::runtime_error("no terminal");
    const winsize size{24, 100, 0, 0};
    ::ioctl(screen_, TIOCSWINSZ, &size);
  }
  ~Terminal() override { ::close(screen_); }

  // A program whose standard error is the terminal.
  std::unique_ptr<Process> start(const std::vector<std::string>& arguments) {
    const int keyboard = ::open(::ptsname(screen_), O_RDWR | O_NOCTTY | O_CLOEXEC);
    const int out = create(root_ / "stdout");
    auto process = std::make_unique<Process>(arguments, work_, out, keyboard);
    ::close(keyboard);
    ::close(out);
    return process;
  }

  // Reads on until the text shown holds `wanted`, or the program has ended; "" reads to the end.
  const std::string& read_until(const std::string& wanted) {
    char piece[4096];
    while (wanted.empty() || shown_.find(wanted) == std::string::npos) {
      const ssize_t count = ::read(screen_, piece, sizeof piece);
      if (count <= 0) break;  // EIO: nobody holds the other end
      shown_.append(piece, static_cast<size_t>(count));
    }
    return shown_;
  }

  int screen_ = -1;
  std::string shown_;
};

TEST_F(Terminal, ShowsABarThatIsGoneAtTheEnd) {
  const auto process = start({"train", "job.yaml", "--out", "run", "--set", "epochs=4"});
  const std::string text = read_until("");
  EXPECT_EQ(process->wait().exit_code, 0);
  for (const char* part : {"train epoch 1/4 step  1/32", "samples/s", "loss ", "top-1 ", " left", "--"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(text, EndsWith(kRedraw));
}

TEST_F(Terminal, OneBatchAgainAndAgainHasNoEpochs) {
  const auto process = start({"train", "job.yaml", "--out", "run", "--set", "data.kind=synthetic", "--set",
                              "data.train_samples=0", "--set", "steps=3"});
  const std::string text = read_until("");
  EXPECT_EQ(process->wait().exit_code, 0);
  EXPECT_THAT(text, HasSubstr("train step 1/3"));
  EXPECT_THAT(text, Not(HasSubstr("epoch")));
}

// Whether a signal to a process was not delivered yet.
bool has_pending(pid_t pid, int signal) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("State:") && line.find('Z') != std::string::npos) return false;
    if (line.starts_with("ShdPnd:")) return (std::stoull(line.substr(7), nullptr, 16) >> (signal - 1) & 1) != 0;
  }
  return false;  // it is gone
}

class Interrupt : public Terminal {
 protected:
  // A run without an end, in its first steps.
  std::unique_ptr<Process> start_long_run(std::vector<std::string> more = {}) {
    std::vector<std::string> arguments{"train", "job.yaml", "--out", "run", "--set", "steps=100000000"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    auto process = start(arguments);
    EXPECT_THAT(read_until("loss "), HasSubstr("loss "));
    return process;
  }
};

TEST_F(Interrupt, IsAskedBackThenSavesAndEnds) {
  const auto process = start_long_run();
  process->interrupt();
  EXPECT_THAT(read_until("Ctrl-C again: save a checkpoint and end"), HasSubstr("end? "));
  EXPECT_THAT(read_until("loss "), HasSubstr("loss "));  // it goes on meanwhile
  process->interrupt();
  read_until("");
  const Outcome outcome = process->wait();
  EXPECT_EQ(outcome.exit_code, 75);
  EXPECT_LT(outcome.seconds, 30);
  EXPECT_THAT(shown_, HasSubstr("saving a checkpoint, then ending"));
  EXPECT_THAT(shown_, EndsWith(kRedraw));
  EXPECT_TRUE(json("run/summary.json").at("stopped"));
  EXPECT_FALSE(exists("run/model.safetensors"));
  ASSERT_TRUE(exists("run/checkpoints"));
  EXPECT_EQ(run({"checkpoint", "verify", "run"}).exit_code, 0);
  const auto step = json("run/summary.json").at("steps").get<int64_t>();
  const Outcome rest = run({"train", "--resume", "run", "--set", "steps=" + std::to_string(step + 2)});
  EXPECT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_EQ(steps("run").size(), static_cast<size_t>(step + 2));
}

TEST_F(Interrupt, TheThirdEndsAtOnce) {
  const auto process = start_long_run();
  for (int i = 0; i < 3; ++i) {
    process->interrupt();
    // One that is still to be delivered would not be counted twice.
    while (has_pending(process->pid(), SIGINT)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  read_until("");
  const Outcome outcome = process->wait();
  EXPECT_TRUE(outcome.exit_code == 128 + SIGINT || outcome.exit_code == 75) << outcome.exit_code;
  EXPECT_FALSE(exists("run/model.safetensors"));
}

TEST_F(Interrupt, OfAnOverwritingRunLeavesNothingOfTheOldOne) {
  ASSERT_EQ(
      run({"train", "job.yaml", "--out", "run", "--set", "steps=3", "--set", "checkpoint.every=1 steps"}).exit_code, 0);
  const auto process = start_long_run({"--overwrite"});
  ::kill(process->pid(), SIGKILL);
  read_until("");
  process->wait();
  EXPECT_EQ(files(), (std::set<std::string>{"job.yaml", "run", "run/job.yaml", "run/metrics.jsonl"}));
}

TEST_F(Interrupt, WithoutATerminalSavesAndEndsAtOnce) {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    const int nowhere = create(root_ / "stderr");
    Process process({"train", "job.yaml", "--out", "run", "--overwrite", "--set", "steps=100000000"}, work_, nowhere,
                    nowhere);
    ::close(nowhere);
    const auto trains = [&] { return exists("run/metrics.jsonl") && !read("run/metrics.jsonl").empty(); };
    for (int wait = 0; wait < 10'000 && !trains(); ++wait) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ::kill(process.pid(), signal);
    EXPECT_EQ(process.wait().exit_code, 75) << signal;
    EXPECT_EQ(run({"checkpoint", "verify", "run"}).exit_code, 0) << signal;
    std::filesystem::remove_all(path("run"));
  }
}

}  // namespace
}  // namespace millrace::cli
