// plan.json, as a run takes it: the keys below "parallel" are settings of the job. The rest of the file is for readers.
#pragma once

#include <string>
#include <vector>

namespace millrace::plan {

// "parallel.mode=1f1b" and so on, for read_job. Every mistake is one std::invalid_argument line that names the file.
std::vector<std::string> read_plan_settings(const std::string& path);
std::vector<std::string> parse_plan_settings(const std::string& text, const std::string& file_name);

}  // namespace millrace::plan
