// Numbers as people read them. For machines the same numbers stand unrounded in the JSON files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::report {

std::string human_bytes(int64_t bytes);      // "812 B", "1.50 MiB", "22.9 GiB"
std::string human_count(int64_t count);      // "1,281,167"
std::string human_large(int64_t count);      // "25.6 M"
std::string human_duration(double seconds);  // "850 us", "12.3 ms", "4.20 s", "1:05", "2:03:09"
std::string human_clock(double seconds);     // "0:04", "1:05", "2:03:09": never shorter than m:ss
std::string human_number(double value);      // three significant digits: "0.123", "4.56", "123", "4,321", "1.23e+09"
std::string human_loss(double loss);         // six at most: "0.0235", "6.9612", "123457", "1.5e+30", "not a number"
std::string human_percent(double fraction);  // "91.2%"

// "1 step", "1,000 steps"
std::string counted(int64_t count, std::string_view noun);

}  // namespace millrace::report
