#include "millrace/report/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "millrace/report/table.h"
#include "millrace/report/units.h"

namespace millrace::report {
namespace {

constexpr int kMinBar = 8, kMaxBar = 40;
constexpr int kPlainWidth = 200;  // of lines that go to a file
constexpr const char* kClearLine = "\r\x1b[K";

std::string bar(double done, int width, const ProgressStyle& style) {
  done = std::clamp(done, 0.0, 1.0);
  std::string full, rest;
  if (style.unicode) {
    static constexpr std::array kEighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    const int eighths = static_cast<int>(done * width * 8);
    for (int i = 0; i < eighths / 8; ++i) full += "█";
    full += kEighths[static_cast<size_t>(eighths % 8)];
    for (int i = (eighths + 7) / 8; i < width; ++i) rest += "░";
  } else {
    const int cells = static_cast<int>(done * width);
    full.assign(static_cast<size_t>(cells), '#');
    rest.assign(static_cast<size_t>(width - cells), '-');
  }
  if (!style.color) return full + rest;
  return "\x1b[32m" + full + "\x1b[2;39m" + rest + "\x1b[0m";
}

bool locale_is_utf8() {
  // The first of these that is set decides, as in setlocale(3).
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string_view text(value);
    for (const char* charset : {"UTF-8", "utf-8", "UTF8", "utf8"}) {
      if (text.find(charset) != std::string_view::npos) return true;
    }
    return false;
  }
  return false;
}

int terminal_width(std::FILE* out) {
  winsize size{};
  if (::ioctl(::fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

}  // namespace

std::string render(const ProgressState& state, int width, const ProgressStyle& style) {
  std::string left(state.phase);
  const auto append = [&](const std::string& text) { left += (left.empty() ? "" : " ") + text; };
  if (state.epoch > 0 && state.epochs > 0)
    append(fmt::format("epoch {}/{}", state.epoch, state.epochs));
  else if (state.epoch > 0)
    append(fmt::format("epoch {}", state.epoch));
  const std::string total = fmt::format("{}", state.steps);
  append(fmt::format("step {:>{}}/{}", state.step, total.size(), total));

  // In the order shown, with how long each is kept: the lowest goes first when the line is too long.
  struct Part {
    int rank;
    std::string text;
  };
  std::vector<Part> parts;
  if (state.samples_per_s) parts.push_back({1, fmt::format("{} samples/s", human_number(*state.samples_per_s))});
  if (state.loss) parts.push_back({4, "loss " + human_loss(*state.loss)});
  if (state.accuracy) parts.push_back({2, fmt::format("top-1 {}", human_percent(*state.accuracy))});
  if (state.seconds_left) parts.push_back({3, fmt::format("{} left", human_clock(*state.seconds_left))});

  const auto length = [&] {
    size_t columns = static_cast<size_t>(display_width(left));
    for (const Part& part : parts) columns += 2 + static_cast<size_t>(display_width(part.text));
    return static_cast<int>(columns);
  };
  while (!parts.empty() && length() > width) {
    parts.erase(
        std::min_element(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.rank < b.rank; }));
  }
  if (length() > width) return std::string(fit_width(left, width));

  std::string line = left;
  const int room = std::min(kMaxBar, width - length() - 2);
  if (style.bar && room >= kMinBar && state.steps > 0) {
    line += "  " + bar(static_cast<double>(state.step) / static_cast<double>(state.steps), room, style);
  }
  for (const Part& part : parts) line += "  " + part.text;
  return line;
}

void Pace::step(double seconds, int64_t samples) {
  constexpr double kMemorySeconds = 15;
  const double keep = std::exp(-seconds / kMemorySeconds);
  weight_s_ = keep * weight_s_ + seconds;
  weighted_samples_ = keep * weighted_samples_ + static_cast<double>(samples);
  weighted_steps_ = keep * weighted_steps_ + 1;
}

std::optional<double> Pace::samples_per_s() const {
  if (weight_s_ <= 0) return std::nullopt;
  return weighted_samples_ / weight_s_;
}

std::optional<double> Pace::seconds_left(int64_t steps) const {
  if (weighted_steps_ <= 0) return std::nullopt;
  return static_cast<double>(steps) * weight_s_ / weighted_steps_;
}

ProgressOptions ProgressOptions::detect(std::FILE* out) {
  ProgressOptions options;
  options.out = out;
  const char* term = std::getenv("TERM");
  options.terminal = ::isatty(::fileno(out)) == 1 && (term == nullptr || std::string_view(term) != "dumb");
  const char* no_color = std::getenv("NO_COLOR");
  options.style.color = options.terminal && (no_color == nullptr || *no_color == '\0');
  options.style.unicode = options.terminal && locale_is_utf8();
  return options;
}

void Progress::update(const ProgressState& state) {
  const auto now = std::chrono::steady_clock::now();
  if (last_ && now - *last_ < (options_.terminal ? options_.redraw_every : options_.line_every)) return;
  last_ = now;
  if (!options_.terminal) {
    write(render(state, kPlainWidth, {.bar = false}) + "\n");
    return;
  }
  // The last column stays free: some terminals break the line as soon as it is filled.
  const int width = (options_.width > 0 ? options_.width : terminal_width(options_.out)) - 1;
  shown_ = render(state, width, options_.style);
  write(kClearLine + shown_);
}

void Progress::note(std::string_view line) {
  std::string text;
  if (!shown_.empty()) text += kClearLine;
  text += line;
  text += '\n';
  text += shown_;
  write(text);
}

void Progress::finish() {
  if (shown_.empty()) return;
  shown_.clear();
  write(kClearLine);
}

void Progress::write(std::string_view text) {
  // One write a line, so that other output does not land in the middle of it.
  std::fwrite(text.data(), 1, text.size(), options_.out);
  std::fflush(options_.out);
}

}  // namespace millrace::report
