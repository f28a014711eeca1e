// What froze when, why, and what came of it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "millrace/runtime/succession.h"

namespace millrace::report {

// The course of a run whose layers freeze.
struct Course {
  std::string name;
  int layers = 0;
  std::vector<runtime::Stretch> stretches;
  std::vector<runtime::Transition> transitions;
};

// elastic.json of the run directory.
nlohmann::ordered_json to_json(const Course& course);
// Throws nlohmann's exceptions for what to_json has not written.
Course course_from_json(const nlohmann::json& json);

// A table for people; empty where nothing froze.
std::string transitions_table(const Course& course);
// A line for each training that could keep what its frozen layers make: whether it did, and why.
std::string cache_verdicts(const Course& course);

// elastic.svg: over the steps of the run, which layers stood still, on how many stages and devices the rest ran, how
// much came from the cache, and what a step took.
std::string course_svg(const Course& course);

}  // namespace millrace::report
