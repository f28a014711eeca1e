// Sentences with a label each, from a table of tab-separated values as GLUE's SST-2 has them: a header line with the
// columns "sentence" and "label" in any order, other columns ignored, no quoting.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/data/skip_log.h"

namespace millrace::data {

struct TsvRow {
  size_t begin = 0, bytes = 0;  // the sentence, in the file's text
  int32_t label = 0;
  int64_t line = 0;  // counted from 1
};

struct TsvFile {
  std::string text;
  std::vector<TsvRow> rows;  // at least one

  std::string_view sentence(size_t row) const {
    return std::string_view(text).substr(rows[row].begin, rows[row].bytes);
  }
};

// A row that cannot be used stops the reading with BadSample or, where there is a log, is added to it and left out.
// Without a usable header or row there is nothing to train on: that is std::invalid_argument in any case.
TsvFile read_tsv(const std::string& path, SkipLog* skip);

// The same from memory; `name` stands for the file in messages.
TsvFile parse_tsv(std::string text, std::string_view name, SkipLog* skip);

}  // namespace millrace::data
