#include <nlohmann/json.hpp>

#include "millrace/base/error.h"
#include "millrace/base/pending_file.h"
#include "millrace/state/safetensors.h"
#include "millrace/state/safetensors_layout.h"

namespace millrace::state {
namespace {

using nlohmann::json;

std::string make_header(const std::string& path, const std::map<std::string, Tensor>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    if (name == "__metadata__") fail_input("{}: a tensor cannot be named __metadata__", path);
    if (tensor.shape.elements() != static_cast<int64_t>(tensor.data.size())) {
      fail_input("{}: tensor \"{}\" is {} but holds {} values", path, name, tensor.shape.str(), tensor.data.size());
    }
    const uint64_t end = offset + tensor.data.size() * sizeof(float);
    json shape = json::array();
    for (int64_t extent : tensor.shape) shape.push_back(extent);
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception&) {
    fail_input("{}: a tensor's name or the metadata is not UTF-8", path);
  }
  text.append((8 - text.size() % 8) % 8, ' ');  // so that the data is aligned when the file is mapped
  return text;
}

}  // namespace

void put_safetensors(const PutBytes& put, const std::map<std::string, Tensor>& tensors,
                     const std::map<std::string, std::string>& metadata, const std::string& path) {
  const std::string header = make_header(path, tensors, metadata);
  const uint64_t header_bytes = header.size();
  put(&header_bytes, sizeof header_bytes);
  put(header.data(), header.size());
  for (const auto& [name, tensor] : tensors) put(tensor.data.data(), tensor.data.size() * sizeof(float));
}

void write_safetensors(const std::string& path, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  PendingFile file(path);
  put_safetensors([&](const void* data, size_t bytes) { file.write(data, bytes); }, tensors, metadata, path);
  file.put_in_place();
}

}  // namespace millrace::state
