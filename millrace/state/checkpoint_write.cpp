#include <algorithm>

#include "millrace/base/error.h"
#include "millrace/base/pending_file.h"
#include "millrace/state/checked_file.h"
#include "millrace/state/checkpoint.h"
#include "millrace/state/checkpoint_manifest.h"
#include "millrace/state/safetensors_layout.h"
#include "millrace/state/sealed_json.h"

namespace millrace::state {
namespace {

namespace fs = std::filesystem;

// Of all that describes it but its size and checksum.
Shard named_shard(ShardKind kind, int age, int part, int64_t updates) {
  Shard shard{.file = {}, .kind = kind, .age = age, .updates = updates, .bytes = 0, .xxh3 = {}};
  shard.file = kind == ShardKind::Older ? fmt::format("{}-{}-{}.safetensors", kind_name(kind), age, part)
                                        : fmt::format("{}-{}.safetensors", kind_name(kind), part);
  return shard;
}

void write_shard(const fs::path& directory, Shard& shard, const std::map<std::string, Tensor>& tensors) {
  constexpr size_t kPiece = size_t{1} << 20;  // still in the cache when it is written
  const std::string path = (directory / shard.file).string();
  PendingFile file(path);
  Checksum checksum;
  const auto put = [&](const void* data, size_t bytes) {
    const char* rest = static_cast<const char*>(data);
    shard.bytes += static_cast<int64_t>(bytes);
    while (bytes > 0) {
      const size_t piece = std::min(bytes, kPiece);
      checksum.add(rest, piece);
      file.write(rest, piece);
      rest += piece;
      bytes -= piece;
    }
  };
  put_safetensors(put, tensors, {}, path);
  file.put_in_place();
  shard.xxh3 = checksum.digits();
}

int64_t updates_of(const fs::path& directory, int part, const State& state) {
  if (state.updates.empty()) return 0;
  const auto& [first, updates] = *state.updates.begin();
  for (const auto& [name, others] : state.updates) {
    if (others != updates) {
      fail_run("{}: part {}: {} has had {} updates and {} {}; they belong in two parts", directory.string(), part,
               first, updates, name, others);
    }
  }
  return updates;
}

fs::path shard_list_file(const fs::path& directory, int part) {
  return directory / fmt::format("shards-{}.json", part);
}

}  // namespace

std::vector<Shard> write_shards(const fs::path& directory, int part, const State& state) {
  const int64_t updates = updates_of(directory, part, state);
  std::vector<Shard> shards;
  const auto write = [&](ShardKind kind, int age, const std::map<std::string, Tensor>& tensors) {
    write_shard(directory, shards.emplace_back(named_shard(kind, age, part, updates)), tensors);
  };
  if (!state.params.empty()) write(ShardKind::Weights, 0, state.params);
  if (!state.velocity.empty()) write(ShardKind::Velocity, 0, state.velocity);
  if (!state.second_moment.empty()) write(ShardKind::SecondMoment, 0, state.second_moment);
  if (!state.watched.empty()) write(ShardKind::Watched, 0, state.watched);
  // Also empty ones: how many there are is part of the state.
  for (size_t i = 0; i < state.older.size(); ++i) write(ShardKind::Older, static_cast<int>(i) + 1, state.older[i]);
  return shards;
}

void write_manifest(const fs::path& directory, Manifest manifest, const std::string& job_yaml) {
  manifest.job_bytes = static_cast<int64_t>(job_yaml.size());
  manifest.job_xxh3 = Checksum::of(job_yaml);
  const std::string file = (directory / "manifest.json").string();
  const std::string text = manifest_text(manifest, file);
  write_file((directory / "job.yaml").string(), job_yaml);
  write_file(file, text);
}

void write_shard_list(const fs::path& directory, int part, const std::vector<Shard>& shards) {
  const std::string file = shard_list_file(directory, part).string();
  write_file(file, shard_list_text(shards, file));
}

std::vector<Shard> take_shard_list(const fs::path& directory, int part) {
  const fs::path path = shard_list_file(directory, part);
  std::vector<Shard> shards;
  try {
    shards = parse_shard_list(read_sealed(path, kLargestManifest), path.string());
  } catch (const std::invalid_argument& error) {
    fail_run("{}", error.what());  // another process of this run wrote it
  }
  std::error_code error;
  if (!fs::remove(path, error)) fail_run("{}: cannot be removed: {}", path.string(), error.message());
  return shards;
}

}  // namespace millrace::state
