#include "millrace/report/table.h"

#include <algorithm>
#include <cstdint>

namespace millrace::report {
namespace {

// Decodes the code point at the front of `text` and drops it; bytes that are not UTF-8 count one by one.
char32_t take_code_point(std::string_view& text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  size_t length = lead < 0x80 ? 1 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
  length = std::min(length, text.size());
  char32_t code = length == 1 ? lead : lead & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; ++i) code = (code << 6) | (static_cast<uint8_t>(text[i]) & 0x3Fu);
  text.remove_prefix(length);
  return code;
}

int columns_of(char32_t code) {
  const bool combining = (code >= 0x300 && code <= 0x36F) || code == 0x200B || code == 0x200D ||
                         (code >= 0x20D0 && code <= 0x20FF) || (code >= 0xFE00 && code <= 0xFE0F);
  if (combining) return 0;
  const bool wide = (code >= 0x1100 && code <= 0x115F) || (code >= 0x2E80 && code <= 0xA4CF) ||
                    (code >= 0xAC00 && code <= 0xD7A3) || (code >= 0xF900 && code <= 0xFAFF) ||
                    (code >= 0xFE30 && code <= 0xFE6F) || (code >= 0xFF00 && code <= 0xFF60) ||
                    (code >= 0x1F300 && code <= 0x1FAFF) || (code >= 0x20000 && code <= 0x3FFFD);
  return wide ? 2 : 1;
}

bool numeric(std::string_view cell) {
  if (cell.empty() || cell == "-") return true;
  if (cell[0] == '-' || cell[0] == '+') cell.remove_prefix(1);
  return !cell.empty() && cell[0] >= '0' && cell[0] <= '9';
}

}  // namespace

int display_width(std::string_view text) {
  int width = 0;
  while (!text.empty()) width += columns_of(take_code_point(text));
  return width;
}

std::string_view fit_width(std::string_view text, int width) {
  std::string_view rest = text;
  size_t end = 0;
  while (!rest.empty()) {
    width -= columns_of(take_code_point(rest));
    if (width < 0) break;
    end = text.size() - rest.size();
  }
  return text.substr(0, end);
}

std::string Table::str() const {
  size_t num_columns = header_.size();
  for (const auto& row : rows_) num_columns = std::max(num_columns, row.size());
  std::vector<int> widths(num_columns, 0);
  std::vector<bool> right(num_columns, !rows_.empty());
  for (size_t i = 0; i < header_.size(); ++i) widths[i] = display_width(header_[i]);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], display_width(row[i]));
      if (!numeric(row[i])) right[i] = false;
    }
  }

  std::string text;
  const auto end_line = [&] { text.erase(text.find_last_not_of(' ') + 1), text += '\n'; };
  const auto write_row = [&](const std::vector<std::string>& row) {
    for (size_t i = 0; i < num_columns; ++i) {
      const std::string_view cell = i < row.size() ? std::string_view(row[i]) : std::string_view();
      const std::string padding(static_cast<size_t>(widths[i] - display_width(cell)), ' ');
      if (i > 0) text += "  ";
      if (right[i]) text += padding;
      text += cell;
      if (!right[i]) text += padding;
    }
    end_line();
  };
  const auto write_rule = [&] {
    for (size_t i = 0; i < num_columns; ++i) {
      if (i > 0) text += "  ";
      text.append(static_cast<size_t>(widths[i]), '-');
    }
    end_line();
  };

  if (!header_.empty()) write_row(header_), write_rule();
  for (const auto& row : rows_) {
    if (row.empty())
      write_rule();
    else
      write_row(row);
  }
  return text;
}

}  // namespace millrace::report
