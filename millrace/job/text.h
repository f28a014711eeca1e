// Words as users write them: strict numbers, safe quoting, and the nearest word to a misspelt one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::job {

// Why a text is not a number; `Ok` when it is.
enum class NumberFault { Ok, NotANumber, TooLarge, Negative };

// The whole text must be one decimal number: no sign but '-', no spaces, no "inf", nothing after it.
NumberFault parse_number(std::string_view text, int& value);
NumberFault parse_number(std::string_view text, int64_t& value);
NumberFault parse_number(std::string_view text, uint64_t& value);
NumberFault parse_number(std::string_view text, double& value);

// In double quotes, on one line and of bounded length whatever it holds: for messages.
std::string in_quotes(std::string_view text);

std::string_view trimmed(std::string_view text);

// Insertions, deletions, substitutions and swaps of neighbours between two words, whatever their case.
int edit_distance(std::string_view a, std::string_view b);

// Whether `typed` may have been meant as `known`: few edits for its length, or one begins with the other.
bool is_near(std::string_view typed, std::string_view known);

// The near one among `known` with the fewest edits; empty when none is near.
std::string nearest(std::string_view typed, const std::vector<std::string>& known);

}  // namespace millrace::job
