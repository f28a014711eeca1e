#include "millrace/job/reader.h"

#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/job/fields.h"
#include "millrace/job/small_file.h"
#include "millrace/job/text.h"
#include "millrace/job/validate.h"
#include "millrace/job/yaml_document.h"

namespace millrace::job {
namespace {

// Takes one text for one key; `where` opens the message.
void assign(Job& job, const Field& field, std::string_view text, const std::string& where,
            std::string_view assign_sign) {
  std::string fault = field.read(job, text, assign_sign);
  if (fault.empty()) fault = field.fault(job);
  if (!fault.empty()) fail_input("{}: {}", where, fault);
}

[[noreturn]] void refuse_as_section(const std::string& key, const std::string& where) {
  std::vector<std::string> names;
  for (const Field& field : fields()) {
    if (field.section() == key) names.push_back(field.key);
  }
  fail_input("{}: {} is a section, not a key; it has {}", where, key, fmt::join(names, ", "));
}

class DocumentReader {
 public:
  // What is written under a key in `replaced` is not looked at: --set says something else.
  DocumentReader(std::string file_name, Job& job, std::set<std::string> replaced)
      : file_name_(std::move(file_name)), job_(job), replaced_(std::move(replaced)) {}

  void read(const std::string& text) {
    const YAML::Node document = load_document(text, file_name_, "job file", "batch: 32");
    if (!document.IsMap()) {
      fail_input("{}: a job is lines of \"key: value\", e.g. batch: 32; this is {}", place(document.Mark()),
                 document.IsSequence() ? "a list" : in_quotes(document.Scalar()));
    }
    read_section(document, "");
  }

 private:
  std::string place(const YAML::Mark& mark) const {
    return mark.is_null() ? file_name_ : fmt::format("{}:{}", file_name_, mark.line + 1);
  }

  static std::string join(const std::string& section, const YAML::Node& key) {
    return section.empty() ? key.Scalar() : section + "." + key.Scalar();
  }

  void read_section(const YAML::Node& section, const std::string& name) {
    for (const auto& entry : section) {
      const YAML::Mark mark = entry.first.Mark();
      if (!entry.first.IsScalar()) fail_input("{}: a key must be a word, e.g. batch: 32", place(mark));
      const std::string key = join(name, entry.first);
      const Field* field = find_field(key);
      if (!field && !is_section(key)) refuse_unknown(key, entry.first, entry.second);
      const auto [first, is_new] = first_line_.emplace(key, mark.line + 1);
      if (!is_new) fail_input("{}: {} is given twice, first on line {}", place(mark), key, first->second);
      if (field) {
        read_value(*field, entry.second, mark);
      } else if (entry.second.IsMap()) {
        read_section(entry.second, key);
      } else if (!entry.second.IsNull()) {
        refuse_as_section(key, place(mark));
      }
    }
  }

  void read_value(const Field& field, const YAML::Node& value, const YAML::Mark& mark) {
    const std::string advice = fmt::format("write e.g. {}: {}", field.key, field.example);
    if (value.IsNull()) fail_input("{}: {} has no value; {}", place(mark), field.key, advice);
    if (value.IsMap()) fail_input("{}: {} has no keys below it; {}", place(mark), field.key, advice);
    if (value.IsSequence() && !field.is_list) fail_input("{}: {} is not a list; {}", place(mark), field.key, advice);
    std::vector<std::string> items;
    for (const YAML::Node& item : value) {
      if (!item.IsScalar()) fail_input("{}: {} is a list of plain values; {}", place(mark), field.key, advice);
      items.push_back(item.Scalar());
    }
    const std::string text = value.IsSequence() ? fmt::format("{}", fmt::join(items, ",")) : value.Scalar();
    if (!replaced_.contains(field.key)) assign(job_, field, text, place(mark), ": ");
  }

  // Names the first full path below the unknown key, for that is what its neighbours are compared by. Anchors can
  // make a document endless, hence the bound.
  [[noreturn]] void refuse_unknown(std::string path, YAML::Node key, YAML::Node value) const {
    for (int depth = 0; depth < 2 && value.IsMap() && value.size() > 0 && value.begin()->first.IsScalar(); ++depth) {
      const auto entry = *value.begin();
      key.reset(entry.first);
      path = join(path, key);
      value.reset(entry.second);
    }
    fail_input("{}: unknown key {}; {}", place(key.Mark()), in_quotes(path), advice_for_unknown_key(path));
  }

  std::string file_name_;
  Job& job_;
  const std::set<std::string> replaced_;
  std::map<std::string, int> first_line_;
};

std::string key_of(const std::string& set) {
  return std::string(trimmed(std::string_view(set).substr(0, set.find('='))));
}

void apply_set(Job& job, const std::string& set) {
  const std::string shown = in_quotes(set);
  const std::string where = "--set " + shown.substr(1, shown.size() - 2);
  const size_t equals = set.find('=');
  if (equals == std::string::npos) fail_input("{}: write --set key=value, e.g. --set batch=32", where);
  const std::string key = key_of(set);
  if (const Field* field = find_field(key)) {
    assign(job, *field, std::string_view(set).substr(equals + 1), where, "=");
  } else if (is_section(key)) {
    refuse_as_section(key, where);
  } else {
    fail_input("{}: unknown key {}; {}", where, in_quotes(key), advice_for_unknown_key(key));
  }
}

// Plain where YAML reads it back as the same text, else in double quotes.
std::string quoted_for_yaml(const std::string& text) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto is_plain = [&](char c) { return is_letter(c) || (c >= '0' && c <= '9') || std::strchr("_./-", c); };
  const bool is_null = text == "null" || text == "Null" || text == "NULL";
  if (!text.empty() && is_letter(text[0]) && std::all_of(text.begin(), text.end(), is_plain) && !is_null) return text;
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

std::string shown_value(const Field& field, const Job& job) {
  return field.is_text ? quoted_for_yaml(field.write(job)) : field.write(job);
}

}  // namespace

Job parse_job(const std::string& yaml_text, const std::string& file_name, const std::vector<std::string>& sets) {
  Job job;
  if (yaml_text.find('\0') != std::string::npos) fail_input("{}: not a text file; a job is written in YAML", file_name);
  std::set<std::string> replaced;
  for (const std::string& set : sets) replaced.insert(key_of(set));
  DocumentReader(file_name, job, replaced).read(yaml_text);
  for (const std::string& set : sets) apply_set(job, set);
  if (job.name.empty()) job.name = std::filesystem::path(file_name).stem().string();
  validate(job, file_name);
  return job;
}

Job read_job(const std::string& path, const std::vector<std::string>& sets) {
  return parse_job(read_small_file(path, "job file"), path, sets);
}

namespace {

std::string to_yaml(const Job& job, const std::function<bool(const Field&)>& is_written) {
  std::string out, section;
  for (const Field& field : fields()) {
    if (!is_written(field)) continue;
    if (field.section() != section) {
      section = field.section();
      out += section + ":\n";
    }
    out += fmt::format("{}{}: {}\n", section.empty() ? "" : "  ", field.leaf(), shown_value(field, job));
  }
  return out;
}

}  // namespace

std::string to_yaml(const Job& job) {
  return to_yaml(job, [](const Field&) { return true; });
}

std::string to_short_yaml(const Job& job) {
  return to_yaml(job,
                 [&job, defaults = Job()](const Field& field) { return field.write(job) != field.write(defaults); });
}

std::string describe_keys() {
  const Job defaults;
  size_t key_width = 0, default_width = std::strlen("default");
  for (const Field& field : fields()) {
    key_width = std::max(key_width, field.key.size());
    default_width = std::max(default_width, shown_value(field, defaults).size());
  }
  std::string out = fmt::format("{:{}}  {:{}}  {}\n", "key", key_width, "default", default_width, "meaning");
  for (const Field& field : fields()) {
    const std::string choices = field.choices.empty() ? "" : fmt::format(" ({})", fmt::join(field.choices, ", "));
    out += fmt::format("{:{}}  {:{}}  {}{}\n", field.key, key_width, shown_value(field, defaults), default_width,
                       field.doc, choices);
  }
  return out;
}

}  // namespace millrace::job
