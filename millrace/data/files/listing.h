// Names of files: their order, and lists of class names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace millrace::data {

// True where `a` comes first, runs of digits compared as numbers: part-9 before part-10.
bool in_number_order(std::string_view a, std::string_view b);

// Paths of the regular files of a folder whose names begin so, in number order.
std::vector<std::string> files_beginning(const std::string& folder, std::string_view begin);

// The same for those whose names end so.
std::vector<std::string> files_ending(const std::string& folder, std::string_view end);

// The lines of a file of class names, by label; empty where there is no such file.
std::vector<std::string> read_class_names(const std::string& path);

void write_class_names(const std::string& path, const std::vector<std::string>& names);

}  // namespace millrace::data
