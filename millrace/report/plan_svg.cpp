#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "millrace/report/plan_report.h"
#include "millrace/report/svg_text.h"
#include "millrace/report/units.h"

namespace millrace::report {
namespace {

using runtime::Activity;
using runtime::Span;
using runtime::WorkerRecord;

constexpr double kWidth = 1100, kLabel = 150, kRow = 34, kBox = 26, kTop = 84, kBelow = 74;
constexpr int kShownUpdates = 6;  // without a flush: the pipeline fills and is in its steady state
constexpr double kNarrowestName = 22;

// Hues that stay apart for people who do not see red or green.
constexpr std::array<int, 8> kHues{210, 35, 160, 285, 55, 335, 190, 110};

std::string colour(int stage, Activity activity) {
  const int hue = kHues[static_cast<size_t>(stage) % kHues.size()];
  const int light = activity == Activity::Forward ? 72 : activity == Activity::InputGrad ? 56 : 44;
  return activity == Activity::Step ? "hsl(0,0%,35%)" : fmt::format("hsl({},62%,{}%)", hue, light);
}

// A round number of seconds that gives about `count` ticks.
double tick_s(double length_s, int count) {
  const double rough = length_s / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (double step : {1.0, 2.0, 5.0}) {
    if (step * power >= rough) return step * power;
  }
  return 10 * power;
}

class Picture {
 public:
  Picture(const std::vector<WorkerRecord>& records, double length_s)
      : records_(records), length_s_(length_s), height_(kTop + kRow * static_cast<double>(records.size()) + kBelow) {}

  std::string draw(const std::string& title, const std::string& subtitle) {
    line(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {:.0f} {:.0f}" width="{:.0f}" height="{:.0f}" )"
         R"(font-family="system-ui, sans-serif" font-size="13">)",
         kWidth, height_, kWidth, height_);
    line(R"(<rect width="100%" height="100%" fill="white"/>)");
    line(R"(<text x="16" y="28" font-size="18" font-weight="600">{}</text>)", escaped(title));
    line(R"(<text x="16" y="50" fill="#555">{}</text>)", escaped(subtitle));
    axis();
    for (size_t w = 0; w < records_.size(); ++w) worker(w);
    legend();
    line("</svg>");
    return std::move(text_);
  }

 private:
  double x(double seconds) const { return kLabel + seconds / length_s_ * (kWidth - kLabel - 16); }

  void axis() {
    const double step = tick_s(length_s_, 8), bottom = kTop + kRow * static_cast<double>(records_.size());
    for (double at = 0; at <= length_s_ * 1.0001; at += step) {
      line(R"(<line x1="{0:.1f}" x2="{0:.1f}" y1="{1:.0f}" y2="{2:.0f}" stroke="#e4e4e4"/>)", x(at), kTop - 6, bottom);
      line(R"(<text x="{:.1f}" y="{:.0f}" fill="#777" font-size="11" text-anchor="middle">{}</text>)", x(at), kTop - 11,
           at == 0 ? "0" : human_duration(at));
    }
  }

  void worker(size_t w) {
    const WorkerRecord& record = records_[w];
    const double y = kTop + kRow * static_cast<double>(w);
    line(R"(<text x="16" y="{:.1f}">{} <tspan fill="#777">stage{} {}</tspan></text>)", y + kBox / 2 + 5, record.device,
         record.stages.size() == 1 ? "" : "s", fmt::format("{}", fmt::join(record.stages, ", ")));
    line(R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.0f}" fill="#f6f6f6"/>)", x(0), y, x(length_s_) - x(0),
         kBox);
    for (const Span& span : record.spans) {
      if (span.activity == Activity::Receive || span.activity == Activity::Reduce) continue;
      const double begin = static_cast<double>(span.begin_ns) * 1e-9, end = static_cast<double>(span.end_ns) * 1e-9;
      if (begin >= length_s_) continue;
      const double left = x(begin), width = std::max(0.3, x(std::min(end, length_s_)) - left);
      line(
          R"(<rect x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:.0f}" fill="{}"><title>{} of stage {}, {} {}: {}</title></rect>)",
          left, y, width, kBox, colour(span.stage, span.activity), name_of(span.activity), span.stage,
          span.activity == Activity::Step ? "update" : "micro-batch", span.microbatch, human_duration(end - begin));
      if (width < kNarrowestName || span.activity == Activity::Step) continue;
      line(R"(<text x="{:.1f}" y="{:.1f}" fill="{}" font-size="11" text-anchor="middle">{}{}</text>)", left + width / 2,
           y + kBox / 2 + 4, span.activity == Activity::Forward ? "#222" : "white", name_of(span.activity),
           span.microbatch);
    }
  }

  void legend() {
    const double y = kTop + kRow * static_cast<double>(records_.size()) + 26;
    double at = kLabel;
    const auto entry = [&](const std::string& fill, const std::string& name) {
      line(R"(<rect x="{:.1f}" y="{:.1f}" width="14" height="14" rx="2" fill="{}"/>)", at, y, fill);
      line(R"(<text x="{:.1f}" y="{:.1f}" fill="#555">{}</text>)", at + 20, y + 12, name);
      at += 38 + 7.0 * static_cast<double>(name.size());
    };
    entry(colour(0, Activity::Forward), "forward");
    entry(colour(0, Activity::InputGrad), "input gradient");
    entry(colour(0, Activity::WeightGrad), "weight gradient");
    entry(colour(0, Activity::Step), "update");
    entry("#f6f6f6", "waiting");
    line(R"(<text x="{:.1f}" y="{:.1f}" fill="#777">a colour for each stage, a number for each micro-batch</text>)",
         kLabel, y + 36);
  }

  template <typename... Values>
  void line(fmt::format_string<const Values&...> format, const Values&... values) {
    fmt::format_to(std::back_inserter(text_), format, values...);
    text_ += '\n';
  }

  const std::vector<WorkerRecord>& records_;
  double length_s_, height_;
  std::string text_;
};

}  // namespace

std::string plan_svg(const PlannedJob& planned) {
  const plan::Candidate& best = planned.choice.candidates[0];
  const int updates = best.plan.pipeline.synchronous() ? 1 : kShownUpdates;
  const std::vector<WorkerRecord> records = simulated_records(best.plan, best.prediction, updates);
  double length_s = 0;
  for (const WorkerRecord& record : records) length_s = std::max(length_s, record.train_s);
  const std::string subtitle = fmt::format(
      "{} a step, {} samples/s, bubble {}: {}", human_duration(best.prediction.step_s),
      human_number(best.prediction.samples_per_s), human_percent(best.prediction.bubble_share), plan::to_text(best));
  return Picture(records, length_s)
      .draw(fmt::format("{} on {}, batch {}", planned.job.model.name, planned.cluster.name, planned.job.batch),
            subtitle);
}

}  // namespace millrace::report
