#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "millrace/report/svg_text.h"
#include "millrace/report/transitions.h"

namespace millrace::report {
namespace {

using runtime::Stretch;

constexpr double kWidth = 1100, kLabel = 150, kRight = 24, kTop = 84;
constexpr const char* kStands = "hsl(210,62%,82%)";
constexpr const char* kLearns = "hsl(210,62%,46%)";

class CoursePicture {
 public:
  explicit CoursePicture(const Course& course) : course_(course) {
    first_ = course.stretches.front().first_step;
    end_ = course.stretches.back().first_step + std::max<int64_t>(1, course.stretches.back().steps);
  }

  std::string draw() {
    const double layer = std::clamp(240.0 / (course_.layers + 1), 6.0, 24.0);
    const double layers = kTop + layer * (course_.layers + 1), height = layers + 314;
    line(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0:.0f} {1:.0f}" width="{0:.0f}" height="{1:.0f}" )"
         R"(font-family="system-ui, sans-serif" font-size="13">)",
         kWidth, height);
    line(R"(<rect width="100%" height="100%" fill="white"/>)");
    line(R"(<text x="16" y="28" font-size="18" font-weight="600">{}: what froze when</text>)", escaped(course_.name));
    line(
        R"(<text x="16" y="50" fill="#555">{} of {} layers at the end; a step took {:.1f} ms at first and {:.1f} ms at )"
        R"(last</text>)",
        course_.stretches.back().frozen, course_.layers, course_.stretches.front().step_s * 1e3,
        course_.stretches.back().step_s * 1e3);
    axis(height - 40);
    draw_layers(layer);
    double y = layers + 18;
    y = bars(
        y, 36, "stages", [](const Stretch& s) { return static_cast<double>(s.stages); }, "hsl(280,35%,55%)",
        [](const Stretch& s) { return fmt::format("{}", s.stages); });
    y = bars(
        y, 36, "devices", [](const Stretch& s) { return static_cast<double>(s.workers); }, "hsl(160,50%,45%)",
        [](const Stretch& s) { return fmt::format("{}", s.workers); });
    y = bars(
        y, 36, "from the cache", [](const Stretch& s) { return s.cached; }, "hsl(35,80%,55%)",
        [](const Stretch& s) { return s.cached > 0 ? fmt::format("{:.0f}%", 100 * s.cached) : std::string(); });
    bars(
        y, 60, "a step takes", [](const Stretch& s) { return s.step_s; }, "hsl(0,0%,45%)",
        [](const Stretch& s) { return fmt::format("{:.1f} ms", s.step_s * 1e3); });
    line("</svg>");
    return std::move(text_);
  }

 private:
  double x(int64_t step) const {
    return kLabel +
           static_cast<double>(step - first_) / static_cast<double>(end_ - first_) * (kWidth - kLabel - kRight);
  }
  double left(const Stretch& s) const { return x(s.first_step); }
  double width(const Stretch& s) const { return x(s.first_step + s.steps) - x(s.first_step); }

  void axis(double bottom) {
    for (const Stretch& s : course_.stretches) {
      line(R"(<line x1="{0:.1f}" x2="{0:.1f}" y1="{1:.0f}" y2="{2:.0f}" stroke="#ddd"/>)", left(s), kTop - 8, bottom);
      line(R"(<text x="{:.1f}" y="{:.0f}" fill="#777" font-size="11" text-anchor="middle">{}</text>)", left(s),
           bottom + 16, s.first_step);
    }
    line(R"(<text x="{:.1f}" y="{:.0f}" fill="#777" font-size="11" text-anchor="middle">step {}</text>)",
         kWidth - kRight - 12, bottom + 16, end_);
  }

  // The last one, the task's own, is on top.
  void draw_layers(double layer) {
    const int all = course_.layers + 1;
    line(R"(<text x="16" y="{:.0f}">layers</text>)", kTop + 12.0);
    line(R"(<text x="16" y="{:.0f}" fill="#777" font-size="11">dark: learns</text>)", kTop + 28.0);
    line(R"(<text x="16" y="{:.0f}" fill="#777" font-size="11">light: frozen</text>)", kTop + 42.0);
    for (const Stretch& s : course_.stretches) {
      for (int l = 0; l < all; ++l) {
        line(R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" fill="{}"/>)", left(s),
             kTop + layer * (all - 1 - l), std::max(width(s) - 1, 0.5), layer - 1, l < s.frozen ? kStands : kLearns);
      }
    }
  }

  template <typename Value, typename Words>
  double bars(double y, double height, const char* label, Value value, const char* colour, Words words) {
    double most = 0;
    for (const Stretch& s : course_.stretches) most = std::max(most, value(s));
    line(R"(<text x="16" y="{:.0f}">{}</text>)", y + height / 2 + 4, label);
    for (const Stretch& s : course_.stretches) {
      const double bar = most > 0 ? value(s) / most * (height - 16) : 0;
      line(R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" fill="{}"/>)", left(s), y + height - bar,
           std::max(width(s) - 1, 0.5), bar, colour);
      constexpr double kLetter = 6.5;
      const std::string text = words(s);
      if (width(s) < 8 + kLetter * static_cast<double>(text.size())) continue;
      line(R"(<text x="{:.1f}" y="{:.1f}" font-size="11" fill="#333">{}</text>)", left(s) + 4, y + height - bar - 4,
           text);
    }
    return y + height + 18;
  }

  template <typename... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '\n';
  }

  const Course& course_;
  int64_t first_ = 0, end_ = 1;
  std::string text_;
};

}  // namespace

std::string course_svg(const Course& course) { return CoursePicture(course).draw(); }

}  // namespace millrace::report
