#include "millrace/report/units.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

namespace millrace::report {
namespace {

// Three significant digits without an exponent. The limits are where rounding would show a fourth.
std::string three_digits(double value) {
  const double size = std::abs(value);
  if (size >= 99.95 || value == 0) return fmt::format("{:.0f}", value);
  if (size >= 9.995) return fmt::format("{:.1f}", value);
  if (size >= 0.9995) return fmt::format("{:.2f}", value);
  return fmt::format("{:.3g}", value);
}

}  // namespace

std::string human_bytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  // 999.5, not 1024: "0.98 GiB" reads better than "1004 MiB".
  while (std::abs(value) >= 999.5 && unit + 1 < std::size(kUnits)) value /= 1024, ++unit;
  if (unit == 0) return fmt::format("{} B", bytes);
  if (std::abs(value) < 0.9995) return fmt::format("{:.2f} {}", value, kUnits[unit]);
  return fmt::format("{} {}", three_digits(value), kUnits[unit]);
}

std::string human_count(int64_t count) {
  std::string digits = fmt::format("{}", count);
  const auto first = static_cast<std::ptrdiff_t>(count < 0 ? 1 : 0);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > first; at -= 3) {
    digits.insert(static_cast<size_t>(at), 1, ',');
  }
  return digits;
}

std::string human_large(int64_t count) {
  static constexpr const char* kUnits[] = {"", " k", " M", " G", " T", " P"};
  auto value = static_cast<double>(count);
  size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < std::size(kUnits)) value /= 1000, ++unit;
  return unit == 0 ? fmt::format("{}", count) : three_digits(value) + kUnits[unit];
}

std::string human_clock(double seconds) {
  if (!std::isfinite(seconds)) return "-:--";
  const auto total = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  const int64_t hours = total / 3600, minutes = total / 60 % 60;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60);
  return fmt::format("{}:{:02}", minutes, total % 60);
}

std::string human_duration(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  if (seconds >= 59.95) return human_clock(seconds);
  if (seconds >= 0.9995) return three_digits(seconds) + " s";
  if (seconds >= 0.9995e-3) return three_digits(seconds * 1e3) + " ms";
  return three_digits(seconds * 1e6) + " us";
}

std::string human_number(double value) {
  if (!std::isfinite(value)) return "-";
  if (std::abs(value) >= 999'999.5) return fmt::format("{:.3g}", value);
  if (std::abs(value) >= 999.5) return human_count(std::llround(value));
  return three_digits(value);
}

std::string human_loss(double loss) {
  if (std::isnan(loss)) return "not a number";
  return std::abs(loss) < 99.99995 ? fmt::format("{:.4f}", loss) : fmt::format("{:.6g}", loss);
}

std::string counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", human_count(count), noun, count == 1 ? "" : "s");
}

std::string human_percent(double fraction) { return fmt::format("{:.1f}%", 100 * fraction); }

}  // namespace millrace::report
