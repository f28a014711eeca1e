// The keys of a job: one table that says, for each, where it is kept, what it may be and what it means.
// Reading, --set, writing and documentation all go through it, so a key is written once.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/job/job.h"

namespace millrace::job {

struct Field {
  std::string key;  // "optimizer.lr"
  std::string doc;
  std::string example;
  std::vector<std::string> choices;  // all it may be, where that is a short list
  bool is_list = false;
  bool is_text = false;  // anything goes, so it may need quotes

  // Sets the member from text; a list is separated by commas. Returns what is wrong with the text, nothing when
  // it was taken. `assign` is how the advice joins key and value: ": " in YAML, "=" for --set.
  std::function<std::string(Job&, std::string_view text, std::string_view assign)> read;
  // The member as text that `read` takes back to the same value.
  std::function<std::string(const Job&)> write;
  // What is wrong with the member's value; nothing when it lies in its range.
  std::function<std::string(const Job&)> fault;

  std::string section() const;  // "optimizer"; empty at the top
  std::string leaf() const;     // "lr"
};

// In the order in which a job is written: the top first, then section by section.
const std::vector<Field>& fields();

const Field* find_field(std::string_view key);
bool is_section(std::string_view key);

// The advice for a key that does not exist, e.g. `did you mean "optimizer.lr"?`.
std::string advice_for_unknown_key(const std::string& key);

}  // namespace millrace::job
