#include "millrace/plan/quantity.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "millrace/job/text.h"

namespace millrace::plan {
namespace {

struct Unit {
  const char* name;
  double scale;
  bool written = true;  // to_text uses it
};

// The largest first.
const std::vector<Unit>& units_of(Quantity quantity) {
  static const std::vector<Unit> bytes{{"TiB", 0x1p40, true}, {"GiB", 0x1p30, true}, {"MiB", 0x1p20, true},
                                       {"KiB", 0x1p10, true}, {"TB", 1e12, false},   {"GB", 1e9, false},
                                       {"MB", 1e6, false},    {"kB", 1e3, false},    {"B", 1, true}};
  static const std::vector<Unit> rates{{"TB/s", 1e12, false},
                                       {"GB/s", 1e9},
                                       {"MB/s", 1e6},
                                       {"kB/s", 1e3},
                                       {"B/s", 1},
                                       {"Tb/s", 1.25e11, false},
                                       {"Gb/s", 1.25e8, false},
                                       {"Mb/s", 1.25e5, false},
                                       {"kb/s", 125, false},
                                       {"b/s", 0.125, false}};
  static const std::vector<Unit> times{{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}};
  switch (quantity) {
    case Quantity::Bytes: return bytes;
    case Quantity::Rate: return rates;
    case Quantity::Time: break;
  }
  return times;
}

}  // namespace

std::optional<double> parse_quantity(std::string_view text, Quantity quantity) {
  text = job::trimmed(text);
  if (text == "0") return 0;
  const size_t space = text.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  const std::string_view number = text.substr(0, space), unit = job::trimmed(text.substr(space));
  double value = 0;
  if (job::parse_number(number, value) != job::NumberFault::Ok || !(value >= 0)) return std::nullopt;
  for (const Unit& known : units_of(quantity)) {
    // A division by a power of ten rounds once, a product with its inverse twice.
    if (unit != known.name) continue;
    value = known.scale < 1 && quantity == Quantity::Time ? value / std::round(1 / known.scale) : value * known.scale;
    return std::isfinite(value) ? std::optional(value) : std::nullopt;
  }
  return std::nullopt;
}

std::string to_text(double value, Quantity quantity) {
  if (value == 0) return "0";
  for (const Unit& unit : units_of(quantity)) {
    const double number = value / unit.scale;
    if (!unit.written || number < 1) continue;
    // Short where that is exact: 2.9999999999999996 us is 3 us.
    for (const std::string& text :
         {fmt::format("{:.12g} {}", number, unit.name), fmt::format("{} {}", number, unit.name)}) {
      if (parse_quantity(text, quantity) == value) return text;
    }
  }
  return fmt::format("{} {}", value, quantity == Quantity::Bytes ? "B" : quantity == Quantity::Rate ? "B/s" : "s");
}

const char* example_of(Quantity quantity) {
  switch (quantity) {
    case Quantity::Bytes: return "12 GiB";
    case Quantity::Rate: return "25 Gb/s (bits) or 3.1 GB/s (bytes)";
    case Quantity::Time: break;
  }
  return "5 us";
}

}  // namespace millrace::plan
