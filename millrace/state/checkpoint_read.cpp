#include <utility>

#include "millrace/base/error.h"
#include "millrace/state/checked_file.h"
#include "millrace/state/checkpoint.h"
#include "millrace/state/checkpoint_manifest.h"
#include "millrace/state/checkpoint_shard.h"

namespace millrace::state {
namespace {

std::map<std::string, Tensor>& tensors_of(State& state, const Shard& shard) {
  switch (shard.kind) {
    case ShardKind::Weights: return state.params;
    case ShardKind::Velocity: return state.velocity;
    case ShardKind::SecondMoment: return state.second_moment;
    case ShardKind::Watched: return state.watched;
    case ShardKind::Older: break;
  }
  const auto age = static_cast<size_t>(shard.age);
  if (state.older.size() < age) state.older.resize(age);
  return state.older[age - 1];
}

}  // namespace

Manifest read_manifest(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "manifest.json";
  return parse_manifest(read_sealed(path, kLargestManifest), path.string());
}

std::string read_job(const std::filesystem::path& directory, const Manifest& manifest) {
  CheckedFile file(directory / "job.yaml");
  file.require_bytes(manifest.job_bytes);
  std::string text(static_cast<size_t>(file.bytes()), '\0');
  file.read(text.data(), text.size());
  file.require_checksum(manifest.job_xxh3);
  return text;
}

State read_state(const std::filesystem::path& directory, const Manifest& manifest,
                 const std::function<bool(const std::string&)>& wanted) {
  State state;
  ShardNames names;
  for (const Shard& shard : manifest.shards) {
    ShardContents contents = read_shard(directory, shard, wanted);
    names.add(directory, shard, contents.names);
    if (shard.kind == ShardKind::Weights) {
      for (const auto& [name, tensor] : contents.tensors) state.updates[name] = shard.updates;
    }
    tensors_of(state, shard).merge(contents.tensors);
  }
  state.loss_scale = manifest.loss_scale;
  state.step = manifest.step;
  state.samples = manifest.samples;
  state.since = manifest.since;
  state.evaluation_due = manifest.evaluation_due;
  return state;
}

}  // namespace millrace::state
