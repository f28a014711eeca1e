// The one document of a YAML file, for the readers of this folder.
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>

namespace millrace::job {

// `kind` and `example` are for messages: "job file", "batch: 32". Throws for what is not YAML, empty, or more than one
// document.
YAML::Node load_document(const std::string& text, const std::string& file_name, const std::string& kind,
                         const std::string& example);

}  // namespace millrace::job
