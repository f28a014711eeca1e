// Small text tables that line up.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace millrace::report {

// Columns that UTF-8 text takes on a terminal: code points, without combining marks, wide characters as two.
int display_width(std::string_view text);

// The longest part of `text` that takes at most `width` columns.
std::string_view fit_width(std::string_view text, int width);

class Table {
 public:
  Table() = default;
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}

  // A short row is filled up with empty cells.
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  // A line between the rows above and below.
  void add_rule() { rows_.emplace_back(); }

  // Lines that end in '\n', without trailing spaces. A column whose cells all begin with a number (or are "-" or
  // empty) is right-aligned together with its heading, the others are left-aligned.
  std::string str() const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;  // an empty row is a rule
};

}  // namespace millrace::report
