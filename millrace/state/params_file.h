// Parameters in files as torchvision and Hugging Face publish them: their names, shapes and layouts, whatever a State
// calls its own. What write_params writes, others read, and load_params reads back to the bit.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "millrace/graph/graph.h"
#include "millrace/state/state.h"

namespace millrace::state {

// Puts the file's tensors in place of the graph's parameters and statistics in the state; what starts anew stays as it
// is there. Returns lines that a user should see (fit_params.h says which). Throws one std::invalid_argument where the
// file does not fit; the state is then as before.
std::vector<std::string> load_params(const std::string& path, const graph::Graph& graph, State& state);

// Throws what load_params would, from the header alone: a wrong file is found before any work is done.
void check_params(const std::string& path, const graph::Graph& graph);

// The graph's parameters as their publisher would write them.
std::map<std::string, Tensor> published(const graph::Graph& graph, std::map<std::string, Tensor> params);
void write_params(const std::string& path, const graph::Graph& graph, std::map<std::string, Tensor> params);

}  // namespace millrace::state
