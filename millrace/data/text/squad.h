// Questions about paragraphs, with the answers as spans of their paragraph: the JSON of SQuAD 1.1.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/data/skip_log.h"

namespace millrace::data {

struct SquadAnswer {
  std::string text;
  size_t begin = 0;  // byte of the context at which the text stands; the file counts characters
};

struct SquadQuestion {
  std::string id;
  std::string text;
  size_t paragraph = 0;
  std::vector<SquadAnswer> answers;  // at least one; training uses the first, the metric all
};

struct SquadFile {
  std::vector<std::string> contexts;     // one per paragraph
  std::vector<SquadQuestion> questions;  // at least one
};

// A question that cannot be used (a key missing, an answer that is not where it should be) stops the reading with
// BadSample or, where there is a log, is added to it and left out. A file that is no SQuAD 1.1, or has no question that
// can be used, is std::invalid_argument.
SquadFile read_squad(const std::string& path, SkipLog* skip);

// The same from memory; `name` stands for the file in messages.
SquadFile parse_squad(std::string_view text, std::string_view name, SkipLog* skip);

}  // namespace millrace::data
