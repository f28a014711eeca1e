#include "millrace/report/percentiles.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <vector>

namespace millrace::report {
namespace {

double interpolate(const std::vector<double>& sorted, double percent) {
  assert(percent >= 0 && percent <= 100);
  if (sorted.empty()) return std::numeric_limits<double>::quiet_NaN();
  const double position = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (position - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

std::vector<double> sorted(std::span<const double> values) {
  std::vector<double> result(values.begin(), values.end());
  std::sort(result.begin(), result.end());
  return result;
}

}  // namespace

double percentile(std::span<const double> values, double percent) { return interpolate(sorted(values), percent); }

Percentiles percentiles(std::span<const double> values) {
  const std::vector<double> ordered = sorted(values);
  return {interpolate(ordered, 10), interpolate(ordered, 50), interpolate(ordered, 90)};
}

}  // namespace millrace::report
