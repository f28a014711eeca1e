// A checkpoint: a directory with a training state by global name, which knows nothing of how it was run.
//
//   step-00000500/
//     weights-0.safetensors          parameters and running statistics, by global name; shards by whoever wrote them
//     velocity-0.safetensors         of the optimizer
//     second_moment-0.safetensors
//     watched-0.safetensors          elastic.freeze: gradient: how large gradients were
//     older-1-0.safetensors          asynchronous modes: the weights one update before, older-2: two before, ...
//     weights-1.safetensors ...
//     job.yaml                       the resolved job
//     manifest.json                  position, loss scale, and of every file above its size and XXH3 checksum
//
// It is written beside its place, under a name that begins with a dot, flushed to the disk, and renamed when it is
// complete: what has the name of a checkpoint is one. Nothing that is read is believed before it is checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "millrace/plan/freeze_rule.h"
#include "millrace/state/state.h"

namespace millrace::state {

enum class ShardKind { Weights, Velocity, SecondMoment, Watched, Older };

struct Shard {
  std::string file;  // within the checkpoint's directory
  ShardKind kind = ShardKind::Weights;
  int age = 0;          // of ShardKind::Older: updates before the newest, from 1
  int64_t updates = 0;  // that its parameters have had
  int64_t bytes = 0;
  std::string xxh3;  // 16 hexadecimal digits, as `xxhsum -H3` prints them
  bool operator==(const Shard&) const = default;
};

// What is to be known of a checkpoint besides its tensors.
struct Manifest {
  int64_t step = 0;
  int64_t samples = 0;
  job::SizedSince since = {};
  double epoch = 0;
  int64_t train_samples = 0;  // of the data set, so that another is noticed
  std::vector<float> loss_scale = {};
  std::string plan = {};                           // how it was run, in words: for people only
  std::map<std::string, double> figures = {};      // of the last evaluation before it
  std::optional<plan::FreezeState> freezing = {};  // elastic.freeze
  bool evaluation_due = false;                     // at its step, and still to be made by whoever goes on
  std::string job_xxh3 = {};
  int64_t job_bytes = 0;
  std::vector<Shard> shards = {};
  bool operator==(const Manifest&) const = default;
};

// Writes the shards of a part of a state into `directory`, flushed to the disk: <kind>-<part>.safetensors, none for
// what is empty. All parameters of a part have had equally many updates. Throws std::runtime_error with one line that
// names the file (disk full, read-only); what it wrote is then left for the caller to remove.
std::vector<Shard> write_shards(const std::filesystem::path& directory, int part, const State& state);

// The last file: with it `directory` is complete. `shards` of all parts; job_* are filled in from job_yaml. Figures
// that are not finite are left out.
void write_manifest(const std::filesystem::path& directory, Manifest manifest, const std::string& job_yaml);

// For the process that completes a checkpoint, what others wrote: a small file beside their shards.
void write_shard_list(const std::filesystem::path& directory, int part, const std::vector<Shard>& shards);
std::vector<Shard> take_shard_list(const std::filesystem::path& directory, int part);  // and removes the file

// All of these throw std::invalid_argument with one line that names the file and what is wrong with it: missing, so
// many bytes instead of so many, checksum, not of this format, a name that leaves the directory.
Manifest read_manifest(const std::filesystem::path& directory);
// The job as it was resolved, checked against the manifest.
std::string read_job(const std::filesystem::path& directory, const Manifest& manifest);
// The parameters for which `wanted` is true (none given: all), with everything that belongs to them, and the position.
// Every file that is read is read once, and its checksum verified over all its bytes.
State read_state(const std::filesystem::path& directory, const Manifest& manifest,
                 const std::function<bool(const std::string&)>& wanted = {});

struct Damage {
  std::string file;
  std::string what;  // "has 12 bytes, the manifest says 34"
};
// Of every file of a checkpoint; empty: all is well.
std::vector<Damage> verify(const std::filesystem::path& directory);

}  // namespace millrace::state
