// The safetensors format: 8 bytes little-endian header length, a JSON header
// {name: {dtype, shape, data_offsets}, "__metadata__": {...}}, then the data without gaps. Files come from
// anywhere, so nothing in them is believed before it is checked.
#pragma once

#include <map>
#include <string>

#include "millrace/graph/graph.h"
#include "millrace/state/state.h"

namespace millrace::state {

struct TensorFile {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

// Takes F32, and F64, F16 and BF16 converted to F32. PyTorch's whole-number counters "*.num_batches_tracked" are
// left out. Throws std::invalid_argument that names the file and the tensor.
TensorFile read_safetensors(const std::string& path);

// The shapes alone, after the same checks: reads the header and no data.
std::map<std::string, Shape> read_shapes(const std::string& path);

// As F32, sorted by name. The file appears under its name whole or not at all.
void write_safetensors(const std::string& path, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

// Puts the file's tensors in place of all of the graph's parameters and statistics in the state. Throws one
// std::invalid_argument that names what is missing, unexpected or of another shape; the state is then as before.
void load_params(const std::string& path, const graph::Graph& graph, State& state);

// Throws what load_params would, from the header alone: a wrong file is found before any work is done.
void check_params(const std::string& path, const graph::Graph& graph);

}  // namespace millrace::state
