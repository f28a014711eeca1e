// profile.json: one operator a line, so that a file can be read, compared and edited by hand.
#include <algorithm>
#include <cassert>
#include <cmath>
#include <nlohmann/json.hpp>

#include "millrace/base/error.h"
#include "millrace/job/text.h"
#include "millrace/profile/profile.h"

namespace millrace::profile {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kVersion = 3;
constexpr const char* kFormat = "millrace profile";

ordered_json to_json(const Seconds& seconds) {
  assert(std::isfinite(seconds.median) && std::isfinite(seconds.spread));
  return {seconds.median, seconds.spread};
}

ordered_json to_json(const Operator& op) {
  return {{"name", op.name},
          {"kind", op.kind},
          {"forward_s", to_json(op.forward)},
          {"input_grad_s", to_json(op.input_grad)},
          {"weight_grad_s", to_json(op.weight_grad)},
          {"update_s", to_json(op.update)},
          {"output_bytes", op.output_bytes},
          {"kept_bytes", op.kept_bytes},
          {"param_bytes", op.param_bytes},
          {"workspace_bytes", op.workspace_bytes},
          {"algorithm", op.algorithm}};
}

// On one line, with a space after each comma.
std::string one_line(const ordered_json& value) {
  std::string out;
  if (value.is_object()) {
    for (const auto& [key, member] : value.items()) {
      out += fmt::format("{}{}: {}", out.empty() ? "" : ", ", ordered_json(key).dump(), one_line(member));
    }
    return "{" + out + "}";
  }
  if (!value.is_array()) return value.dump();
  for (const auto& item : value) out += (out.empty() ? "" : ", ") + one_line(item);
  return "[" + out + "]";
}

// What a value is, for messages.
std::string shown(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  return value.is_null() ? "null" : job::in_quotes(value.is_string() ? value.get<std::string>() : value.dump());
}

// The members of one object; `where` opens every message.
class Members {
 public:
  Members(const json& object, std::string where, const std::vector<std::string>& known)
      : object_(object), where_(std::move(where)) {
    if (!object.is_object()) fail_input("{}: is {}; write {{\"{}\": ...}}", where_, shown(object), known[0]);
    for (const auto& [key, value] : object.items()) {
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      const std::string near = job::nearest(key, known);
      fail_input("{}: unknown key {}{}", where_, job::in_quotes(key),
                 near.empty() ? std::string() : fmt::format("; did you mean {}?", near));
    }
  }

  const json& at(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) fail_input("{}: {} is missing", where_, key);
    return *found;
  }
  std::string text(const char* key) const {
    const json& value = at(key);
    if (!value.is_string()) fail_input("{}: {} is {}, not a text in quotes", where_, key, shown(value));
    return value.get<std::string>();
  }
  int64_t count(const char* key, int64_t least = 0) const {
    const json& value = at(key);
    if (!value.is_number_integer()) fail_input("{}: {} is {}, not a whole number", where_, key, shown(value));
    const bool fits = !value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{INT64_MAX};
    if (!fits || value.get<int64_t>() < least) {
      fail_input("{}: {} is {}; write {} or more", where_, key, value.dump(), least);
    }
    return value.get<int64_t>();
  }
  std::array<int64_t, 3> three_counts(const char* key) const {
    const json& counts = at(key);
    const bool fits =
        counts.is_array() && counts.size() == 3 && std::all_of(counts.begin(), counts.end(), [](const json& count) {
          return count.is_number_unsigned() && count.get<uint64_t>() <= uint64_t{INT64_MAX};
        });
    if (!fits) fail_input("{}: {} is {}; write [forward, input gradient, weight gradient]", where_, key, shown(counts));
    return {counts[0].get<int64_t>(), counts[1].get<int64_t>(), counts[2].get<int64_t>()};
  }
  double seconds(const json& value, const char* key) const {
    if (!value.is_number()) fail_input("{}: {} holds {}, not a number of seconds", where_, key, shown(value));
    if (value.get<double>() < 0) fail_input("{}: {} is {}; time is 0 or more", where_, key, value.dump());
    return value.get<double>();
  }
  double seconds(const char* key) const { return seconds(at(key), key); }
  Seconds spread_seconds(const char* key) const {
    const json& pair = at(key);
    if (!pair.is_array() || pair.size() != 2) {
      fail_input("{}: {} is {}; write [median, spread]", where_, key, shown(pair));
    }
    return {seconds(pair[0], key), seconds(pair[1], key)};
  }
  const json& list(const char* key) const {
    const json& value = at(key);
    if (!value.is_array()) fail_input("{}: {} is {}, not a list", where_, key, shown(value));
    return value;
  }

 private:
  const json& object_;
  std::string where_;
};

json parse_json(const std::string& text, const std::string& file_name) {
  try {
    return json::parse(text);
  } catch (const json::parse_error& error) {
    const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(error.byte, text.size()));
    fail_input("{}:{}: not JSON; millrace profile writes such files", file_name,
               1 + std::count(text.begin(), end, '\n'));
  } catch (const json::out_of_range&) {
    fail_input("{}: holds a number that is too large", file_name);
  }
}

Operator parse_operator(const json& object, const std::string& file_name, size_t number) {
  static const std::vector<std::string> kKeys{
      "name",         "kind",       "forward_s",   "input_grad_s",    "weight_grad_s", "update_s",
      "output_bytes", "kept_bytes", "param_bytes", "workspace_bytes", "algorithm"};
  std::string where = fmt::format("{}: operator {}", file_name, number);
  if (object.is_object() && object.contains("name") && object["name"].is_string()) {
    where += fmt::format(" ({})", job::in_quotes(object["name"].get<std::string>()));
  }
  const Members members(object, where, kKeys);
  Operator op;
  op.name = members.text("name");
  op.kind = members.text("kind");
  op.forward = members.spread_seconds("forward_s");
  op.input_grad = members.spread_seconds("input_grad_s");
  op.weight_grad = members.spread_seconds("weight_grad_s");
  op.update = members.spread_seconds("update_s");
  op.output_bytes = members.count("output_bytes");
  op.kept_bytes = members.count("kept_bytes");
  op.param_bytes = members.count("param_bytes");
  op.workspace_bytes = members.three_counts("workspace_bytes");
  op.algorithm = members.text("algorithm");
  return op;
}

Edge parse_edge(const json& pair, const std::string& file_name, size_t number, size_t operators) {
  const std::string where = fmt::format("{}: edge {}", file_name, number);
  const bool two = pair.is_array() && pair.size() == 2 && pair[0].is_number_integer() && pair[1].is_number_integer();
  if (!two) fail_input("{}: is {}; write [from, to] as numbers of operators", where, shown(pair));
  for (const json& end : pair) {
    if (end >= 0 && end < operators) continue;
    fail_input("{}: {} names operator {}; there are operators 0 to {}", where, one_line(pair), end.dump(),
               operators - 1);
  }
  const Edge edge{pair[0].get<int>(), pair[1].get<int>()};
  if (edge.from >= edge.to) {
    fail_input("{}: {} goes backwards; an operator reads only what stands before it", where, one_line(pair));
  }
  return edge;
}

}  // namespace

std::string to_json(const Profile& profile) {
  const ordered_json head{{"format", kFormat},
                          {"version", kVersion},
                          {"model", profile.model},
                          {"device", profile.device},
                          {"rows", profile.rows},
                          {"value_bytes", profile.value_bytes},
                          {"input_bytes", profile.input_bytes},
                          {"step_s", profile.step_s}};
  std::string out = "{\n";
  for (const auto& [key, value] : head.items()) {
    out += fmt::format("  \"{}\": {},\n", key, value.dump());
  }
  out += "  \"operators\": [\n";
  for (size_t i = 0; i < profile.operators.size(); ++i) {
    const char* comma = i + 1 < profile.operators.size() ? "," : "";
    out += fmt::format("    {}{}\n", one_line(to_json(profile.operators[i])), comma);
  }
  const auto pairs = [](const std::vector<Edge>& edges) {
    ordered_json list = ordered_json::array();
    for (const Edge& edge : edges) list.push_back({edge.from, edge.to});
    return one_line(list);
  };
  return out + fmt::format("  ],\n  \"edges\": {},\n  \"ties\": {}\n}}\n", pairs(profile.edges), pairs(profile.ties));
}

Profile parse_profile(const std::string& text, const std::string& file_name) {
  static const std::vector<std::string> kKeys{"format",      "version", "model",     "device", "rows", "value_bytes",
                                              "input_bytes", "step_s",  "operators", "edges",  "ties"};
  const json document = parse_json(text, file_name);
  const Members members(document, file_name, kKeys);
  if (members.text("format") != kFormat) {
    fail_input("{}: format is {}, not {}", file_name, shown(members.at("format")), job::in_quotes(kFormat));
  }
  if (const int64_t version = members.count("version"); version != kVersion) {
    fail_input("{}: version is {}; this program reads {}: measure again with millrace profile", file_name, version,
               kVersion);
  }
  Profile profile;
  profile.model = members.text("model");
  profile.device = members.text("device");
  profile.rows = members.count("rows", 1);
  profile.value_bytes = static_cast<int>(members.count("value_bytes", 1));
  profile.input_bytes = members.count("input_bytes");
  profile.step_s = members.seconds("step_s");
  for (const json& object : members.list("operators")) {
    profile.operators.push_back(parse_operator(object, file_name, profile.operators.size()));
  }
  if (profile.operators.empty()) fail_input("{}: the profile is empty: it has no operators", file_name);
  for (const json& pair : members.list("edges")) {
    profile.edges.push_back(parse_edge(pair, file_name, profile.edges.size(), profile.operators.size()));
  }
  for (const json& pair : members.list("ties")) {
    profile.ties.push_back(parse_edge(pair, file_name, profile.ties.size(), profile.operators.size()));
  }
  return profile;
}

}  // namespace millrace::profile
