#include "millrace/report/transitions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "millrace/report/table.h"

namespace millrace::report {
namespace {

using nlohmann::ordered_json;

std::string milliseconds(double seconds) { return seconds > 0 ? fmt::format("{:.1f} ms", seconds * 1e3) : "-"; }

}  // namespace

ordered_json to_json(const Course& course) {
  ordered_json stretches = ordered_json::array(), transitions = ordered_json::array();
  for (const runtime::Stretch& s : course.stretches) {
    stretches.push_back({{"first_step", s.first_step},
                         {"steps", s.steps},
                         {"frozen", s.frozen},
                         {"stages", s.stages},
                         {"workers", s.workers},
                         {"replicas", s.replicas},
                         {"batch", s.batch},
                         {"step_ms", s.step_s * 1e3},
                         {"filling_step_ms", s.filling_step_s * 1e3},
                         {"filled_step_ms", s.filled_step_s * 1e3},
                         {"cached_share", s.cached},
                         {"cache_verdict", s.cache_verdict}});
  }
  for (const runtime::Transition& t : course.transitions) {
    ordered_json norms = ordered_json::array();
    for (const double square : t.squares) norms.push_back(std::sqrt(square));
    transitions.push_back({{"step", t.step},
                           {"why", t.why},
                           {"plan", t.plan},
                           {"gradient_norms", norms},
                           {"pause_ms", t.pause_s * 1e3},
                           {"waited_for_next_ms", t.waited_s * 1e3},
                           {"moved_bytes", t.moved_bytes},
                           {"kept", t.kept},
                           {"predicted_step_ms", t.predicted_step_s * 1e3},
                           {"predicted_filling_step_ms", t.predicted_filling_s * 1e3},
                           {"predicted_step_ms_before", t.predicted_before_s * 1e3}});
  }
  return {{"name", course.name}, {"layers", course.layers}, {"stretches", stretches}, {"transitions", transitions}};
}

Course course_from_json(const nlohmann::json& json) {
  Course course{json.at("name"), json.at("layers"), {}, {}};
  for (const auto& s : json.at("stretches")) {
    runtime::Stretch& stretch = course.stretches.emplace_back();
    s.at("first_step").get_to(stretch.first_step);
    s.at("steps").get_to(stretch.steps);
    s.at("frozen").get_to(stretch.frozen);
    s.at("stages").get_to(stretch.stages);
    s.at("workers").get_to(stretch.workers);
    s.at("batch").get_to(stretch.batch);
    stretch.step_s = s.at("step_ms").get<double>() * 1e-3;
    s.at("cached_share").get_to(stretch.cached);
    // Younger than the others.
    stretch.replicas = s.value("replicas", 0);
    stretch.filling_step_s = s.value("filling_step_ms", 0.) * 1e-3;
    stretch.filled_step_s = s.value("filled_step_ms", 0.) * 1e-3;
    stretch.cache_verdict = s.value("cache_verdict", "");
  }
  for (const auto& t : json.at("transitions")) {
    runtime::Transition& transition = course.transitions.emplace_back();
    t.at("step").get_to(transition.step);
    t.at("why").get_to(transition.why);
    t.at("plan").get_to(transition.plan);
    for (const double norm : t.at("gradient_norms")) transition.squares.push_back(norm * norm);
    transition.pause_s = t.at("pause_ms").get<double>() * 1e-3;
    transition.waited_s = t.at("waited_for_next_ms").get<double>() * 1e-3;
    transition.predicted_step_s = t.at("predicted_step_ms").get<double>() * 1e-3;
    transition.predicted_before_s = t.at("predicted_step_ms_before").get<double>() * 1e-3;
    transition.kept = t.value("kept", 0);
    transition.moved_bytes = t.value("moved_bytes", int64_t{0});
    transition.predicted_filling_s = t.value("predicted_filling_step_ms", 0.) * 1e-3;
  }
  return course;
}

std::string transitions_table(const Course& course) {
  if (course.transitions.empty()) return {};
  const bool fills = std::any_of(course.stretches.begin(), course.stretches.end(),
                                 [](const runtime::Stretch& s) { return s.filling_step_s > 0; });
  // A cache is filled in the first epoch of a training: steps of that one and later ones are predicted each by itself.
  std::vector<std::string> head{"from step", "frozen", "stages", "workers", "batch", "a step takes", "predicted"};
  if (fills) head.insert(head.end() - 2, {"first epoch", "predicted"});
  if (fills) head[head.size() - 2] = "after it";
  head.insert(head.end(), {"cached", "pause before", "because"});
  Table table(head);
  for (size_t i = 0; i < course.stretches.size(); ++i) {
    const runtime::Stretch& s = course.stretches[i];
    const runtime::Transition* before = i > 0 ? &course.transitions[i - 1] : nullptr;
    std::vector<std::string> row{fmt::format("{}", s.first_step), fmt::format("{} of {}", s.frozen, course.layers),
                                 fmt::format("{}", s.stages), fmt::format("{}", s.workers), fmt::format("{}", s.batch)};
    const bool filled = s.filling_step_s > 0;
    if (fills) {
      row.push_back(milliseconds(s.filling_step_s));
      row.push_back(filled && before ? milliseconds(before->predicted_filling_s) : "-");
    }
    row.push_back(milliseconds(filled ? s.filled_step_s : s.step_s));
    row.push_back(before ? milliseconds(before->predicted_step_s) : "-");
    row.push_back(s.cached > 0 ? fmt::format("{:.0f}%", 100 * s.cached) : "-");
    row.push_back(before ? milliseconds(before->pause_s) : "-");
    row.push_back(before ? before->why : "");
    table.add(row);
  }
  return table.str();
}

std::string cache_verdicts(const Course& course) {
  std::string text;
  for (const runtime::Stretch& s : course.stretches) {
    if (s.cache_verdict.empty()) continue;
    text += fmt::format("from step {}, what layers 1 to {} make: {}\n", s.first_step, s.frozen, s.cache_verdict);
  }
  return text;
}

}  // namespace millrace::report
