#include "millrace/state/sealed_json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <vector>

#include "millrace/base/error.h"
#include "millrace/state/checksum.h"

namespace millrace::state {
namespace {

using nlohmann::json;

constexpr std::string_view kObjectEnd = "\n}";
constexpr std::string_view kBefore = ",\n  \"xxh3\": \"", kAfter = "\"\n}\n";
constexpr size_t kDigits = 16;

}  // namespace

std::string sealed(const nlohmann::ordered_json& object) {
  std::string text = object.dump(2);
  text.resize(text.size() - kObjectEnd.size());
  const std::string digits = Checksum::of(text);
  return text.append(kBefore).append(digits).append(kAfter);
}

void check_seal(const std::string& text, const std::string& name) {
  constexpr size_t kSeal = kBefore.size() + kDigits + kAfter.size();
  const std::string_view all = text;
  if (all.size() < kSeal || !all.ends_with(kAfter) || !all.substr(all.size() - kSeal).starts_with(kBefore)) {
    fail_input("{}: does not end with its checksum; it is cut off, damaged, or was edited", name);
  }
  const std::string_view digits = all.substr(all.size() - kAfter.size() - kDigits, kDigits);
  const std::string found = Checksum::of(all.substr(0, all.size() - kSeal));
  if (found != digits) fail_input("{}: is not what its checksum was made of; it is damaged, or was edited", name);
}

json parse_object(const std::string& text, int deepest, const std::string& name) {
  std::vector<std::set<std::string>> keys(static_cast<size_t>(deepest) +
                                          1);  // of the object that is open at each depth
  const auto check = [&](int depth, json::parse_event_t event, json& value) {
    const bool opens = event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    if (opens && depth >= deepest) fail_input("{}: is nested too deeply", name);
    if (opens) keys[static_cast<size_t>(depth) + 1].clear();
    if (event != json::parse_event_t::key) return true;
    const auto& key = value.get_ref<const std::string&>();
    if (!keys[static_cast<size_t>(depth)].insert(key).second) fail_input("{}: has a key twice in one object", name);
    return true;
  };
  json object;
  try {
    object = json::parse(text, check);
  } catch (const json::parse_error& error) {
    fail_input("{}: is not valid JSON at byte {}", name, error.byte);
  } catch (const json::exception&) {
    fail_input("{}: has a number beyond all bounds", name);
  }
  if (!object.is_object()) fail_input("{}: is not a JSON object", name);
  return object;
}

}  // namespace millrace::state
