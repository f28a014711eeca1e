// What a user at a terminal sees: progress in one line, and an end by Ctrl-C that leaves no mess.
#include <gmock/gmock.h>
#include <sys/ioctl.h>

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

class Interrupt : public Terminal {
 protected:
  // Interrupts a long run in its first steps.
  Outcome interrupt(const std::vector<std::string>& arguments, const std::string& when) {
    const auto process = start(arguments);
    EXPECT_THAT(read_until(when), HasSubstr(when));
    const auto before = std::chrono::steady_clock::now();
    process->interrupt();
    read_until("");
    Outcome outcome = process->wait();
    outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
    return outcome;
  }
};

TEST_F(Interrupt, EndsTrainingAtOnceAndItsLine) {
  const Outcome outcome = interrupt({"train", "job.yaml", "--out", "run", "--set", "steps=100000000"}, "loss ");
  EXPECT_EQ(outcome.exit_code, 128 + SIGINT);
  EXPECT_LT(outcome.seconds, 2);
  EXPECT_THAT(shown_, EndsWith("\n"));
}

TEST_F(Interrupt, LeavesMetricsButNothingThatLooksFinished) {
  interrupt({"train", "job.yaml", "--out", "run", "--set", "steps=100000000"}, "loss ");
  EXPECT_EQ(files(), (std::set<std::string>{"job.yaml", "run", "run/job.yaml", "run/metrics.jsonl"}));
  EXPECT_GE(steps("run").size(), 1u);
}

TEST_F(Interrupt, OfAnOverwritingRunLeavesNothingOfTheOldOne) {
  ASSERT_EQ(run({"train", "job.yaml", "--out", "run", "--set", "steps=1"}).exit_code, 0);
  interrupt({"train", "job.yaml", "--out", "run", "--overwrite", "--set", "steps=100000000"}, "loss ");
  EXPECT_FALSE(exists("run/summary.json"));
  EXPECT_FALSE(exists("run/model.safetensors"));
}

TEST_F(Interrupt, WithoutATerminalEndsTrainingToo) {
  const int nowhere = create(root_ / "stderr");
  Process process({"train", "job.yaml", "--out", "run", "--set", "steps=100000000"}, work_, nowhere, nowhere);
  ::close(nowhere);
  for (int wait = 0; wait < 10'000 && !exists("run/metrics.jsonl"); ++wait) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  process.interrupt();
  EXPECT_EQ(process.wait().exit_code, 128 + SIGINT);
  EXPECT_FALSE(exists("run/summary.json"));
}

}  // namespace
}  // namespace millrace::cli
