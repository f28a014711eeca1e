#include "millrace/data/files/listing.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "millrace/base/error.h"
#include "millrace/base/pending_file.h"

namespace millrace::data {
namespace {

namespace fs = std::filesystem;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Takes a run of digits off the front, without its leading zeros.
std::string_view take_number(std::string_view& text) {
  size_t end = 0;
  while (end < text.size() && is_digit(text[end])) ++end;
  std::string_view digits = text.substr(0, end);
  text.remove_prefix(end);
  while (digits.size() > 1 && digits.front() == '0') digits.remove_prefix(1);
  return digits;
}

template <typename Fits>
std::vector<std::string> files_where(const std::string& folder, const Fits& fits) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::string name = entry.path().filename().string();
    if (fits(name) && entry.is_regular_file()) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end(), in_number_order);
  for (std::string& name : names) name = (fs::path(folder) / name).string();
  return names;
}

}  // namespace

bool in_number_order(std::string_view a, std::string_view b) {
  std::string_view x = a, y = b;
  while (!x.empty() && !y.empty()) {
    if (is_digit(x.front()) && is_digit(y.front())) {
      const std::string_view m = take_number(x), n = take_number(y);
      if (m.size() != n.size()) return m.size() < n.size();
      if (m != n) return m < n;
    } else {
      if (x.front() != y.front()) return static_cast<uint8_t>(x.front()) < static_cast<uint8_t>(y.front());
      x.remove_prefix(1);
      y.remove_prefix(1);
    }
  }
  if (x.empty() != y.empty()) return x.empty();
  return a < b;  // equal but for leading zeros
}

std::vector<std::string> files_beginning(const std::string& folder, std::string_view begin) {
  return files_where(folder, [=](std::string_view name) { return name.starts_with(begin); });
}

std::vector<std::string> files_ending(const std::string& folder, std::string_view end) {
  return files_where(folder, [=](std::string_view name) { return name.ends_with(end); });
}

std::vector<std::string> read_class_names(const std::string& path) {
  std::vector<std::string> names;
  std::ifstream stream(path);
  for (std::string line; std::getline(stream, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    names.push_back(std::move(line));
  }
  while (!names.empty() && names.back().empty()) names.pop_back();
  return names;
}

void write_class_names(const std::string& path, const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    if (name.empty() || name.find('\n') != std::string::npos) {
      fail_input("{}: class name \"{}\" is empty or more than one line; rename the class", path, name);
    }
    text += name + "\n";
  }
  write_file(path, text);
}

}  // namespace millrace::data
