// A run beside its plan, from the files of the run directory.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace millrace::report {

// What was predicted, what came out, and how far apart they are; where the workers' time went, to 100%. `plan` is null
// where the run was not planned. Throws std::invalid_argument where a file is not what a run leaves.
nlohmann::ordered_json compare_run(const nlohmann::json& summary, const nlohmann::json& plan);
std::string side_by_side(const nlohmann::ordered_json& comparison);

}  // namespace millrace::report
