#include "millrace/report/side_by_side.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "millrace/base/error.h"
#include "millrace/report/table.h"
#include "millrace/report/units.h"

namespace millrace::report {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kCauses[] = {"dependency", "imbalance", "communication", "straggler"};

ordered_json pair_of(const json& planned, const json& actual) {
  ordered_json pair{{"planned", planned}, {"actual", actual}};
  const bool both = planned.is_number() && actual.is_number() && planned.get<double>() != 0;
  pair["off"] = both ? ordered_json(actual.get<double>() / planned.get<double>() - 1) : ordered_json(nullptr);
  return pair;
}

json sum_of(const json& list, const char* key) {
  if (!list.is_array()) return nullptr;
  double total = 0;
  for (const json& item : list) total += item.value(key, 0.0);
  return total;
}

json at_or_null(const json& object, const char* pointer) {
  const json::json_pointer where(pointer);
  return object.is_object() && object.contains(where) ? object.at(where) : json(nullptr);
}

std::string shown(const json& value, const std::string& unit) {
  if (!value.is_number()) return "-";
  const double number = value.get<double>();
  if (unit == "bytes") return human_bytes(std::llround(number));
  if (unit == "share") return human_percent(number);
  if (unit == "ms") return human_duration(number * 1e-3);
  return human_number(number);
}

// Of a share in points: a percentage of a percentage says little.
std::string difference(const ordered_json& pair, const std::string& unit) {
  if (!pair["off"].is_number()) return "-";
  if (unit != "share") return fmt::format("{:+.1f}%", 100 * pair["off"].get<double>());
  return fmt::format("{:+.1f} points", 100 * (pair["actual"].get<double>() - pair["planned"].get<double>()));
}

}  // namespace

ordered_json compare_run(const json& summary, const json& plan) {
  if (!summary.is_object() || !summary.contains("samples_per_s") || !summary.contains("workers")) {
    fail_input("summary.json is not of a run of this program");
  }
  const double steps = std::max(1.0, summary.value("steps", 1.0));
  ordered_json out;
  out["model"] = summary.value("model", "");
  out["mode"] = summary.value("mode", "");
  const json mean_step_ms = summary.value("batch", 0.0) / summary.value("samples_per_s", 1.0) * 1e3;
  out["step_ms"] = pair_of(at_or_null(plan, "/predicted/step_ms"), mean_step_ms);
  out["samples_per_s"] = pair_of(at_or_null(plan, "/predicted/samples_per_s"), summary["samples_per_s"]);
  out["bubble_share"] = pair_of(at_or_null(plan, "/predicted/bubble_share"), at_or_null(summary, "/bubble_share"));
  out["memory_bytes"] =
      pair_of(sum_of(at_or_null(plan, "/workers"), "memory_bytes"), at_or_null(summary, "/peak_bytes/measured"));
  out["sent_bytes"] = pair_of(sum_of(at_or_null(plan, "/links"), "bytes"), summary.value("bytes_sent", 0.0) / steps);

  // Of the workers' time: what they computed, what they waited for data, and the bubble by its causes.
  const json bubble = at_or_null(summary, "/bubble_share");
  ordered_json time;
  const double idle = bubble.is_number() ? bubble.get<double>() : 0;
  const double data = std::min(1 - idle, summary.value("data_wait_share", 0.0));
  time["computing"] = 1 - idle - data;
  time["data"] = data;
  double named = 0;
  for (const char* cause : kCauses) {
    const json share = at_or_null(summary, (std::string("/idle/") + cause).c_str());
    if (!share.is_number()) continue;
    time[cause] = share;
    named += share.get<double>();
  }
  if (named == 0 && idle > 0) time["idle, too few steps to say why"] = idle;
  out["time"] = time;
  return out;
}

std::string side_by_side(const ordered_json& comparison) {
  Table table({"", "planned", "actual", "off"});
  struct Row {
    const char *key, *name, *unit;
  };
  for (const auto& [key, name, unit] :
       {Row{"step_ms", "step", "ms"}, Row{"samples_per_s", "samples/s", ""}, Row{"bubble_share", "bubble", "share"},
        Row{"memory_bytes", "memory, all workers", "bytes"}, Row{"sent_bytes", "sent in a step", "bytes"}}) {
    const auto& pair = comparison[key];
    table.add({name, shown(pair["planned"], unit), shown(pair["actual"], unit), difference(pair, unit)});
  }
  Table time({"the workers' time", "share", ""});
  for (const auto& [what, share] : comparison["time"].items()) {
    const double value = share.get<double>();
    time.add({what, human_percent(value), std::string(static_cast<size_t>(std::lround(40 * value)), '#')});
  }
  return fmt::format("{}, {}\n\n{}\n{}", comparison["model"].get<std::string>(), comparison["mode"].get<std::string>(),
                     table.str(), time.str());
}

}  // namespace millrace::report
