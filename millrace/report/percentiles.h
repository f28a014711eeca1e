// Percentiles of measured times.
#pragma once

#include <span>

namespace millrace::report {

// The value below which `percent` of the values lie, interpolated between neighbours; NaN when there are none.
double percentile(std::span<const double> values, double percent);

struct Percentiles {
  double p10 = 0, p50 = 0, p90 = 0;
};
Percentiles percentiles(std::span<const double> values);

}  // namespace millrace::report
