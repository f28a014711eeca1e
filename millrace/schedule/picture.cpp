#include "millrace/schedule/picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace millrace::schedule {
namespace {

int columns_for(const Schedule& schedule, const Timeline& timeline, int most) {
  double shortest_s = timeline.makespan_s;
  for (size_t w = 0; w < schedule.workers.size(); ++w) {
    for (size_t i = 0; i < schedule.workers[w].size(); ++i) {
      const Span& span = timeline.actions[w][i];
      const double seconds = span.end_s - span.begin_s;
      if (is_compute(schedule.workers[w][i].kind) && seconds > 0) shortest_s = std::min(shortest_s, seconds);
    }
  }
  if (shortest_s <= 0) return 0;
  return static_cast<int>(std::min<double>(most, std::round(timeline.makespan_s / shortest_s)));
}

}  // namespace

std::string draw(const Schedule& schedule, const Timeline& timeline, int most_columns) {
  const int columns = columns_for(schedule, timeline, most_columns);
  const size_t label_width = fmt::format("{}", schedule.workers.size() - 1).size();
  std::string text;
  for (size_t w = 0; w < schedule.workers.size(); ++w) {
    std::string row(static_cast<size_t>(columns), '.');
    size_t i = 0;
    for (int column = 0; column < columns; ++column) {
      const double middle_s = (column + 0.5) / columns * timeline.makespan_s;
      const std::vector<Span>& spans = timeline.actions[w];
      while (i < spans.size() && spans[i].end_s <= middle_s) ++i;
      const bool busy = i < spans.size() && spans[i].begin_s <= middle_s;
      if (!busy) continue;
      const Kind kind = schedule.workers[w][i].kind;
      if (is_compute(kind)) row[column] = "FBIW"[static_cast<int>(kind)];
    }
    text += fmt::format("{:>{}} {}\n", w, label_width, row);
  }
  return text;
}

}  // namespace millrace::schedule
