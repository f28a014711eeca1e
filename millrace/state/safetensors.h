// The safetensors format: 8 bytes little-endian header length, a JSON header
// {name: {dtype, shape, data_offsets}, "__metadata__": {...}}, then the data without gaps. Files come from
// anywhere, so nothing in them is believed before it is checked.
#pragma once

#include <map>
#include <string>

#include "millrace/state/state.h"

namespace millrace::state {

struct TensorFile {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

// Takes F32, and F64, F16 and BF16 converted to F32. What PyTorch's modules keep besides parameters is left out, of
// whatever type: the counters of batch norms, the numbers of places, the masks of GPT-2's attentions. Throws
// std::invalid_argument that names the file and the tensor.
TensorFile read_safetensors(const std::string& path);

// The shapes alone, after the same checks: reads the header and no data.
std::map<std::string, Shape> read_shapes(const std::string& path);

// As F32, sorted by name. The file appears under its name whole or not at all.
void write_safetensors(const std::string& path, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace millrace::state
