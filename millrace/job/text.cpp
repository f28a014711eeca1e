#include "millrace/job/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <concepts>

namespace millrace::job {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

template <std::integral T>
NumberFault parse_whole(std::string_view text, T& value) {
  const bool negative = text.starts_with('-');
  const std::string_view digits = text.substr(negative ? 1 : 0);
  if (digits.empty() || !std::all_of(digits.begin(), digits.end(), is_digit)) return NumberFault::NotANumber;
  if (std::unsigned_integral<T> && negative) return NumberFault::Negative;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() ? NumberFault::Ok : NumberFault::TooLarge;
}

}  // namespace

NumberFault parse_number(std::string_view text, int& value) { return parse_whole(text, value); }
NumberFault parse_number(std::string_view text, int64_t& value) { return parse_whole(text, value); }
NumberFault parse_number(std::string_view text, uint64_t& value) { return parse_whole(text, value); }

NumberFault parse_number(std::string_view text, double& value) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec == std::errc::invalid_argument || result.ptr != end) return NumberFault::NotANumber;
  if (result.ec == std::errc::result_out_of_range) return NumberFault::TooLarge;
  return std::isfinite(value) ? NumberFault::Ok : NumberFault::NotANumber;
}

std::string in_quotes(std::string_view text) {
  constexpr size_t kLongest = 80;
  std::string out = "\"";
  for (char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + (text.size() > kLongest ? "...\"" : "\"");
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

int edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the table of distances between prefixes (optimal string alignment).
  std::vector<int> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const char x = lower(a[i - 1]), y = lower(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (x == y ? 0 : 1)});
      if (i > 1 && j > 1 && x == lower(b[j - 2]) && lower(a[i - 2]) == y) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

bool is_near(std::string_view typed, std::string_view known) {
  constexpr size_t kLongestWord = 100;  // nobody means a key by that; keeps hostile input cheap
  if (typed.empty() || typed.size() > kLongestWord) return false;
  const size_t shared = std::min(typed.size(), known.size());
  if (shared >= 3 && typed.substr(0, shared) == known.substr(0, shared)) return true;
  return edit_distance(typed, known) <= std::max(1, static_cast<int>(typed.size()) / 3);
}

std::string nearest(std::string_view typed, const std::vector<std::string>& known) {
  std::string best;
  int fewest = 0;
  for (const std::string& word : known) {
    if (!is_near(typed, word)) continue;
    const int edits = edit_distance(typed, word);
    if (best.empty() || edits < fewest) {
      best = word;
      fewest = edits;
    }
  }
  return best;
}

}  // namespace millrace::job
