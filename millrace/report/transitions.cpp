#include "millrace/report/transitions.h"

#include <fmt/format.h>

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
                           {"predicted_step_ms", t.predicted_step_s * 1e3},
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
    stretch.cache_verdict = s.value("cache_verdict", "");
  }
  for (const auto& t : json.at("transitions")) {
    std::vector<double> squares;
    for (const double norm : t.at("gradient_norms")) squares.push_back(norm * norm);
    course.transitions.push_back(
        {t.at("step"), t.at("why"), t.at("plan"), squares, t.at("pause_ms").get<double>() * 1e-3,
         t.at("waited_for_next_ms").get<double>() * 1e-3, t.at("predicted_step_ms").get<double>() * 1e-3,
         t.at("predicted_step_ms_before").get<double>() * 1e-3});
  }
  return course;
}

std::string transitions_table(const Course& course) {
  if (course.transitions.empty()) return {};
  Table table({"from step", "frozen", "stages", "workers", "batch", "a step takes", "predicted", "cached",
               "pause before", "because"});
  for (size_t i = 0; i < course.stretches.size(); ++i) {
    const runtime::Stretch& s = course.stretches[i];
    const runtime::Transition* before = i > 0 ? &course.transitions[i - 1] : nullptr;
    table.add({fmt::format("{}", s.first_step), fmt::format("{} of {}", s.frozen, course.layers),
               fmt::format("{}", s.stages), fmt::format("{}", s.workers), fmt::format("{}", s.batch),
               milliseconds(s.step_s), before ? milliseconds(before->predicted_step_s) : "-",
               s.cached > 0 ? fmt::format("{:.0f}%", 100 * s.cached) : "-",
               before ? milliseconds(before->pause_s) : "-", before ? before->why : ""});
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
