// The whole of a text file that a job names: a vocabulary, a table, a set of questions.
#pragma once

#include <string>

namespace millrace::data {

// `kind` names the file in messages, e.g. "vocabulary".
std::string read_text(const std::string& path, const std::string& kind);

}  // namespace millrace::data
