#include "millrace/plan/plan_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "millrace/base/error.h"
#include "millrace/job/fields.h"
#include "millrace/job/small_file.h"
#include "millrace/job/text.h"

namespace millrace::plan {
namespace {

using nlohmann::json;

// As --set takes it: lists separated by commas.
std::string setting_text(const json& value, const std::string& where) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean() || value.is_number()) return value.dump();
  if (!value.is_array()) fail_input("{}: write a text, a number, true, false or a list of them", where);
  std::vector<std::string> items;
  for (const json& item : value) items.push_back(setting_text(item, where));
  return fmt::format("{}", fmt::join(items, ","));
}

}  // namespace

std::vector<std::string> parse_plan_settings(const std::string& text, const std::string& file_name) {
  json document;
  try {
    document = json::parse(text);
  } catch (const json::parse_error& error) {
    fail_input("{}: not JSON, at byte {}; write a plan with millrace plan JOB --json {}", file_name, error.byte,
               file_name);
  } catch (const json::out_of_range&) {
    fail_input("{}: holds a number out of range; write a plan with millrace plan JOB --json {}", file_name, file_name);
  }
  if (!document.is_object() || !document.contains("parallel") || !document["parallel"].is_object()) {
    fail_input("{}: no plan: an object \"parallel\" is missing; write one with millrace plan JOB --json {}", file_name,
               file_name);
  }
  std::vector<std::string> settings;
  for (const std::string section : {"parallel", "memory"}) {
    if (!document.contains(section) || !document[section].is_object()) continue;
    for (const auto& [key, value] : document[section].items()) {
      const std::string name = section + "." + key;
      const std::string where = fmt::format("{}: {}", file_name, name);
      if (job::find_field(name) == nullptr) {
        fail_input("{}: there is no such key; {}", where, job::advice_for_unknown_key(name));
      }
      settings.push_back(name + "=" + setting_text(value, where));
    }
  }
  return settings;
}

std::vector<std::string> read_plan_settings(const std::string& path) {
  return parse_plan_settings(job::read_small_file(path, "plan"), path);
}

}  // namespace millrace::plan
