#include "millrace/report/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "millrace/report/table.h"

namespace millrace::report {
namespace {

using testing::HasSubstr;
using testing::Not;

ProgressState example() {
  ProgressState state;
  state.epoch = 2;
  state.epochs = 4;
  state.step = 50;
  state.steps = 200;
  state.samples_per_s = 1234.6;
  state.loss = 0.43215;
  state.accuracy = 0.912;
  state.seconds_left = 42;
  return state;
}

// Collects what a Progress writes.
class Output {
 public:
  ~Output() {
    std::fclose(file_);
    std::free(text_);
  }
  std::FILE* file() { return file_; }
  std::string text() {
    std::fflush(file_);
    return {text_, size_};
  }

 private:
  char* text_ = nullptr;
  size_t size_ = 0;
  std::FILE* file_ = ::open_memstream(&text_, &size_);
};

TEST(Progress, LineShowsEverythingThatFits) {
  EXPECT_EQ(render(example(), 100),
            "epoch 2/4 step  50/200  #####-----------------  1,235 samples/s  loss 0.4321  top-1 91.2%  0:42 left");
}

TEST(Progress, LineNeverExceedsTheWidth) {
  ProgressState state = example();
  state.phase = "train";
  for (const bool unicode : {false, true}) {
    for (int width = 0; width <= 240; ++width) {
      EXPECT_LE(display_width(render(state, width, {.unicode = unicode})), width);
    }
  }
}

TEST(Progress, NarrowLineKeepsTheLossLongest) {
  EXPECT_EQ(render(example(), 40), "epoch 2/4 step  50/200  loss 0.4321");
  EXPECT_EQ(render(example(), 12), "epoch 2/4 st");
}

TEST(Progress, BarGrowsFromNothingToFull) {
  ProgressState state;
  state.steps = 10;
  EXPECT_EQ(render(state, 22), "step  0/10  ----------");
  state.step = 5;
  EXPECT_EQ(render(state, 22), "step  5/10  #####-----");
  EXPECT_EQ(render(state, 23, {.unicode = true}), "step  5/10  █████▌░░░░░");
  state.step = 10;
  EXPECT_EQ(render(state, 22), "step 10/10  ##########");
  state.step = 20;
  EXPECT_EQ(render(state, 22), "step 20/10  ##########");
}

TEST(Progress, ColourOnlyWhenAskedFor) {
  EXPECT_THAT(render(example(), 100), Not(HasSubstr("\x1b")));
  EXPECT_THAT(render(example(), 100, {.color = true}), HasSubstr("\x1b[32m"));
}

TEST(Progress, LossThatIsNotANumberIsSaid) {
  ProgressState state = example();
  state.loss = NAN;
  EXPECT_THAT(render(state, 120), HasSubstr("loss not a number"));
}

TEST(Progress, UnknownTotalsDrawNoBar) {
  ProgressState state;
  state.epoch = 3;
  EXPECT_EQ(render(state, 80), "epoch 3 step 0/0");
}

TEST(Progress, TerminalLineIsRedrawnInPlaceAndGivenBack) {
  Output output;
  {
    Progress progress({.out = output.file(), .terminal = true, .width = 60});
    progress.update(example());
    progress.note("saved");
  }
  const std::string line = render(example(), 59);
  EXPECT_EQ(output.text(), "\r\x1b[K" + line + "\r\x1b[Ksaved\n" + line + "\r\x1b[K");
}

TEST(Progress, TerminalIsRedrawnAtMostTenTimesASecond) {
  Output output;
  Progress progress({.out = output.file(), .terminal = true, .width = 60});
  for (int i = 0; i < 1000; ++i) progress.update(example());
  const std::string text = output.text();
  EXPECT_LE(std::count(text.begin(), text.end(), '\r'), 3);
}

TEST(Progress, FileGetsPlainLines) {
  Output output;
  {
    Progress progress({.out = output.file(), .line_every = std::chrono::milliseconds(0)});
    progress.update(example());
    progress.update(example());
    progress.note("saved");
  }
  const std::string line = "epoch 2/4 step  50/200  1,235 samples/s  loss 0.4321  top-1 91.2%  0:42 left\n";
  EXPECT_EQ(output.text(), line + line + "saved\n");
}

TEST(Progress, FileIsNoTerminal) {
  std::FILE* file = std::tmpfile();
  const ProgressOptions options = ProgressOptions::detect(file);
  EXPECT_FALSE(options.terminal);
  EXPECT_FALSE(options.style.color);
  std::fclose(file);
}

TEST(Pace, FollowsTheRecentSteps) {
  Pace pace;
  EXPECT_FALSE(pace.samples_per_s());
  EXPECT_FALSE(pace.seconds_left(5));
  for (int i = 0; i < 10; ++i) pace.step(1.0, 32);
  EXPECT_NEAR(*pace.samples_per_s(), 32, 1e-9);
  EXPECT_NEAR(*pace.seconds_left(5), 5, 1e-9);
  for (int i = 0; i < 1000; ++i) pace.step(0.5, 32);
  EXPECT_NEAR(*pace.samples_per_s(), 64, 1e-6);
  EXPECT_NEAR(*pace.seconds_left(10), 5, 1e-6);
}

}  // namespace
}  // namespace millrace::report
