// The config.json beside a published model, by which Hugging Face's from_pretrained knows what to build.
#pragma once

#include <nlohmann/json.hpp>

#include "millrace/graph/graph.h"

namespace millrace::state {

// Architecture and sizes, read off the graph as its model wrote it (unfused); null for what is no model of Hugging
// Face's.
nlohmann::ordered_json model_config(const graph::Graph& graph);

}  // namespace millrace::state
