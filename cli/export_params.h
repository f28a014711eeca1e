// Parameters as torchvision or Hugging Face publish them, into a file or a directory with its config.json.
#pragma once

#include <filesystem>
#include <string>

#include "millrace/graph/graph.h"
#include "millrace/state/state.h"

namespace millrace::cli {

// Says what it wrote. `model` is shown where the family has no published name.
void export_params(const graph::Graph& graph, const std::string& model, state::State state,
                   const std::filesystem::path& out);

}  // namespace millrace::cli
