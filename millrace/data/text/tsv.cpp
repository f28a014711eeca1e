#include "millrace/data/text/tsv.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "millrace/base/error.h"
#include "millrace/data/bad_sample.h"
#include "millrace/data/text/read_text.h"
#include "millrace/job/text.h"

namespace millrace::data {

namespace {

using job::in_quotes;

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

struct Field {
  size_t begin = 0, bytes = 0;
};

// Which columns of a line hold what.
struct Columns {
  size_t sentence = 0, label = 0, count = 0;
};

class TsvParser {
 public:
  TsvParser(std::string_view text, std::string_view name) : text_(text), name_(name) {
    if (text_.starts_with(kByteOrderMark)) next_ = kByteOrderMark.size();
    // Empty lines at the end are how editors leave files; elsewhere they are rows without fields.
    end_ = text_.find_last_not_of("\r\n") + 1;  // 0 where there is nothing else
  }

  // Splits the next line into fields; false at the end.
  bool next_line() {
    if (next_ >= end_) return false;
    ++line_;
    size_t line_end = std::min(text_.find('\n', next_), end_);
    const size_t after = line_end + 1;
    if (line_end > next_ && text_[line_end - 1] == '\r') --line_end;
    fields_.clear();
    for (size_t begin = next_;;) {
      const size_t end = std::min(text_.find('\t', begin), line_end);
      fields_.push_back({begin, end - begin});
      if (end == line_end) break;
      begin = end + 1;
    }
    next_ = after;
    return true;
  }

  Columns header() const { return {find_column("sentence"), find_column("label"), fields_.size()}; }

  TsvRow row(const Columns& columns) const {
    if (fields_.size() != columns.count) {
      fail_sample(
          "{}:{}: {} fields where the header has {}; {}", name_, line_, fields_.size(), columns.count,
          fields_.size() < columns.count ? "write a tab between each two of them" : "leave tabs out of the sentence");
    }
    const Field sentence = fields_[columns.sentence];
    if (sentence.bytes == 0) fail_sample("{}:{}: the sentence is empty; write one or remove the line", name_, line_);
    return {sentence.begin, sentence.bytes, label(view(fields_[columns.label])), line_};
  }

  int64_t line() const { return line_; }

 private:
  std::string_view view(const Field& field) const { return text_.substr(field.begin, field.bytes); }

  size_t find_column(std::string_view wanted) const {
    std::optional<size_t> found;
    for (size_t i = 0; i < fields_.size(); ++i) {
      if (view(fields_[i]) != wanted) continue;
      if (found) {
        fail_input("{}:{}: columns {} and {} are both named \"{}\"; rename one", name_, line_, *found + 1, i + 1,
                   wanted);
      }
      found = i;
    }
    if (!found) {
      fail_input(
          "{}:{}: no column \"{}\" among {}, the first of which is {}; begin the file with a line that names the "
          "columns, with tabs between them, \"sentence\" and \"label\" among them",
          name_, line_, wanted, fields_.size(), in_quotes(view(fields_[0])));
    }
    return *found;
  }

  int32_t label(std::string_view text) const {
    int value = 0;
    const job::NumberFault fault = job::parse_number(text, value);
    if (fault == job::NumberFault::Ok && value >= 0) return value;
    const char* reason = fault == job::NumberFault::NotANumber ? "not a whole number"
                         : text.starts_with('-')               ? "negative"
                                                               : "too large";
    fail_sample("{}:{}: label {} is {}; write a whole number from 0 to {}", name_, line_, in_quotes(text), reason,
                std::numeric_limits<int32_t>::max());
  }

  std::string_view text_;
  std::string_view name_;
  size_t next_ = 0;  // where the next line begins
  size_t end_ = 0;
  int64_t line_ = 0;
  std::vector<Field> fields_;  // of the current line
};

}  // namespace

TsvFile parse_tsv(std::string text, std::string_view name, SkipLog* skip) {
  TsvFile file{std::move(text), {}};
  TsvParser parser(file.text, name);
  if (!parser.next_line()) {
    fail_input(
        "{}: an empty file; write a header line with the columns \"sentence\" and \"label\", then a row for each "
        "sentence",
        name);
  }
  const Columns columns = parser.header();
  while (parser.next_line()) {
    try {
      file.rows.push_back(parser.row(columns));
    } catch (const BadSample& bad) {
      if (skip == nullptr) throw;
      skip->add(bad.what());
    }
  }
  if (file.rows.empty()) {
    fail_input("{}: no rows that can be used among {} after the header; write one line for each sentence", name,
               parser.line() - 1);
  }
  return file;
}

TsvFile read_tsv(const std::string& path, SkipLog* skip) {
  return parse_tsv(read_text(path, "table of sentences (.tsv)"), path, skip);
}

}  // namespace millrace::data
