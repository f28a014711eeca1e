// Reading: the layout is checked whole before data is looked at.
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "millrace/base/error.h"
#include "millrace/state/float_formats.h"
#include "millrace/state/safetensors.h"
#include "millrace/state/safetensors_layout.h"

namespace millrace::state {
namespace {

// Follows from the model or counts: no parameter.
bool is_constant(const std::string& name) {
  return name.ends_with("num_batches_tracked") || name.ends_with("position_ids") || name.ends_with(".attn.bias") ||
         name.ends_with(".attn.masked_bias");
}

template <typename T, typename Widen>
void convert(const std::vector<char>& bytes, std::vector<float>& out, Widen widen) {
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = widen(value);
  }
}

Tensor read_tensor(std::ifstream& file, const TensorEntry& entry, const std::string& path) {
  const auto bytes = static_cast<std::streamsize>(entry.end - entry.begin);
  Tensor tensor{entry.shape, std::vector<float>(static_cast<size_t>(entry.shape.elements()))};
  if (entry.dtype == "F32") {
    file.read(reinterpret_cast<char*>(tensor.data.data()), bytes);
  } else {
    std::vector<char> raw(static_cast<size_t>(bytes));
    file.read(raw.data(), bytes);
    if (entry.dtype == "F64") convert<double>(raw, tensor.data, [](double x) { return static_cast<float>(x); });
    if (entry.dtype == "F16") convert<uint16_t>(raw, tensor.data, from_f16);
    if (entry.dtype == "BF16") convert<uint16_t>(raw, tensor.data, from_bf16);
  }
  if (!file) fail_run("{}: tensor {} cannot be read", path, shown(entry.name));
  return tensor;
}

// An opened file whose header and layout have been checked; it stands where the data begins.
struct OpenFile {
  std::ifstream file;
  TensorLayout layout;
};

OpenFile open_file(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) fail_input("{}: no such file", path);
  if (!std::filesystem::is_regular_file(status)) fail_input("{}: not a file; name a safetensors file", path);
  const uint64_t file_bytes = std::filesystem::file_size(path, error);
  OpenFile opened{.file = std::ifstream(path, std::ios::binary), .layout = {}};
  auto& [file, layout] = opened;
  if (error || !file) fail_input("{}: cannot be opened: {}", path, std::strerror(errno));
  const auto take = [&file = file, &path](void* data, size_t bytes) {
    file.read(static_cast<char*>(data), static_cast<std::streamsize>(bytes));
    if (!file) fail_run("{}: the header cannot be read", path);
  };
  layout = take_layout(take, file_bytes, path);
  for (const TensorEntry& entry : layout.entries) {
    const bool is_float = entry.dtype == "F32" || entry.dtype == "F64" || entry.dtype == "F16" || entry.dtype == "BF16";
    if (!is_float && !is_constant(entry.name)) {
      fail_input("{}: tensor {} is {}; F32, F64, F16 and BF16 can be read", path, shown(entry.name), entry.dtype);
    }
  }
  return opened;
}

}  // namespace

std::map<std::string, Shape> read_shapes(const std::string& path) {
  std::map<std::string, Shape> shapes;
  const OpenFile opened = open_file(path);
  for (const TensorEntry& entry : opened.layout.entries) {
    if (!is_constant(entry.name)) shapes[entry.name] = entry.shape;
  }
  return shapes;
}

TensorFile read_safetensors(const std::string& path) {
  auto [file, layout] = open_file(path);
  TensorFile result;
  result.metadata = std::move(layout.metadata);
  for (const TensorEntry& entry : layout.entries) {
    if (is_constant(entry.name)) {
      file.seekg(static_cast<std::streamoff>(entry.end - entry.begin), std::ios::cur);
    } else {
      result.tensors[entry.name] = read_tensor(file, entry, path);
    }
  }
  return result;
}

}  // namespace millrace::state
