// What files of weights and shards of checkpoints share of the safetensors format: its header, checked before anything
// is done with it, and the order of its bytes. Where the bytes come from and go to is the caller's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "millrace/state/state.h"

namespace millrace::state {

struct TensorEntry {
  std::string name;
  std::string dtype;
  Shape shape;
  uint64_t begin = 0, end = 0;  // bytes, from the start of the data
};

struct TensorLayout {
  std::vector<TensorEntry> entries;  // in the order of their data, which they cover, each byte once
  std::map<std::string, std::string> metadata;
};

// Gives the next bytes of a file, all that are asked for, or throws.
using TakeBytes = std::function<void(void* data, size_t bytes)>;
using PutBytes = std::function<void(const void* data, size_t bytes)>;

// Takes the header from the beginning of a file of so many bytes; what follows is the data. Throws
// std::invalid_argument that names the file, `path`, and the tensor.
TensorLayout take_layout(const TakeBytes& take, uint64_t file_bytes, const std::string& path);

// A whole file, as F32, sorted by name. Throws std::invalid_argument before the first byte.
void put_safetensors(const PutBytes& put, const std::map<std::string, Tensor>& tensors,
                     const std::map<std::string, std::string>& metadata, const std::string& path);

// A name from a file as it stands in messages: cut, and on one line.
std::string shown(const std::string& name);

}  // namespace millrace::state
