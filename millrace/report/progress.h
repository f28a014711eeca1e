// How far a run is: one line redrawn in place on a terminal, a plain line now and then everywhere else.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

namespace millrace::report {

struct ProgressState {
  std::string_view phase;  // "train", "test"; empty: not shown
  int64_t epoch = 0;       // from 1; 0: not shown
  int64_t epochs = 0;      // 0: open
  int64_t step = 0;        // done, of the run
  int64_t steps = 0;
  std::optional<double> samples_per_s;
  std::optional<double> loss;
  std::optional<double> accuracy;  // top-1, a fraction
  std::optional<double> seconds_left;
};

struct ProgressStyle {
  bool bar = true;
  bool color = false;
  bool unicode = false;  // a fine bar instead of '#' and '-'
};

// One line of at most `width` columns, without a line end. What matters least is left out where it does not fit.
std::string render(const ProgressState& state, int width, const ProgressStyle& style = {});

// The pace of a run from its steps, with the last quarter of a minute counting most.
class Pace {
 public:
  void step(double seconds, int64_t samples);
  std::optional<double> samples_per_s() const;
  std::optional<double> seconds_left(int64_t steps) const;

 private:
  double weight_s_ = 0, weighted_samples_ = 0, weighted_steps_ = 0;
};

struct ProgressOptions {
  std::FILE* out = stderr;
  bool terminal = false;
  int width = 0;  // 0: ask the terminal
  ProgressStyle style = {};
  std::chrono::milliseconds redraw_every{100};  // on a terminal
  std::chrono::milliseconds line_every{5000};   // elsewhere

  // What fits `out`: a terminal or not, NO_COLOR, TERM=dumb, the locale's character set.
  static ProgressOptions detect(std::FILE* out = stderr);
};

class Progress {
 public:
  explicit Progress(const ProgressOptions& options = ProgressOptions::detect()) : options_(options) {}
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Shows the state, unless the last one is too recent. Cheap when it is.
  void update(const ProgressState& state);
  // Prints a line above the bar.
  void note(std::string_view line);
  // Clears the bar and gives the line back.
  void finish();

 private:
  void write(std::string_view text);

  ProgressOptions options_;
  std::optional<std::chrono::steady_clock::time_point> last_;
  std::string shown_;  // the bar that stands on the terminal
};

}  // namespace millrace::report
