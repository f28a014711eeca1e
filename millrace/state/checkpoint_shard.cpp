#include "millrace/state/checkpoint_shard.h"

#include "millrace/base/error.h"
#include "millrace/state/checked_file.h"
#include "millrace/state/safetensors_layout.h"

namespace millrace::state {
namespace {

ShardContents read_contents(CheckedFile& file, const std::string& path,
                            const std::function<bool(const std::string&)>& wanted) {
  const auto take = [&](void* data, size_t bytes) { file.read(data, bytes); };
  const TensorLayout layout = take_layout(take, static_cast<uint64_t>(file.bytes()), path);
  ShardContents contents;
  for (const TensorEntry& entry : layout.entries) {
    if (entry.dtype != "F32") {
      fail_input("{}: tensor {} is {}; a checkpoint's are F32", path, shown(entry.name), entry.dtype);
    }
  }
  for (const TensorEntry& entry : layout.entries) {
    contents.names.push_back(entry.name);
    if (wanted && !wanted(entry.name)) {
      file.skip(entry.end - entry.begin);
      continue;
    }
    Tensor& tensor = contents.tensors[entry.name];
    tensor.shape = entry.shape;
    tensor.data.resize(static_cast<size_t>(entry.shape.elements()));
    file.read(tensor.data.data(), entry.end - entry.begin);
  }
  return contents;
}

}  // namespace

ShardContents read_shard(const std::filesystem::path& directory, const Shard& shard,
                         const std::function<bool(const std::string&)>& wanted) {
  const std::string path = (directory / shard.file).string();
  CheckedFile file(path);
  file.require_bytes(shard.bytes);
  ShardContents contents;
  try {
    contents = read_contents(file, path, wanted);
  } catch (const std::invalid_argument&) {
    file.require_checksum(shard.xxh3);  // says more than what a damaged header looks like
    throw;
  }
  file.require_checksum(shard.xxh3);
  return contents;
}

void ShardNames::add(const std::filesystem::path& directory, const Shard& shard,
                     const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const auto [found, is_new] = files_.try_emplace({shard.kind, shard.age, name}, shard.file);
    if (!is_new) {
      fail_input("{}: holds tensor {}, which {} holds too", (directory / shard.file).string(), shown(name),
                 found->second);
    }
  }
}

}  // namespace millrace::state
