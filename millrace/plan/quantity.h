// Numbers with their units, as cluster files have them: "12 GiB", "25 Gb/s", "1.3 us".
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace millrace::plan {

enum class Quantity {
  Bytes,  // B, kB, MB, GB, TB; KiB, MiB, GiB, TiB
  Rate,   // bytes: B/s, kB/s, MB/s, GB/s, TB/s; bits: b/s, kb/s, Mb/s, Gb/s, Tb/s
  Time,   // s, ms, us, ns
};

// In bytes, bytes a second or seconds. Nothing unless it is a number that is not negative, followed by a unit; 0 needs
// none.
std::optional<double> parse_quantity(std::string_view text, Quantity quantity);

// In the largest unit that gives a number of at least 1; parse_quantity() gives exactly `value` back.
std::string to_text(double value, Quantity quantity);

// For messages: "12 GiB".
const char* example_of(Quantity quantity);

}  // namespace millrace::plan
