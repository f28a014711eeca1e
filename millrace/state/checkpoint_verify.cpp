#include "millrace/state/checkpoint.h"
#include "millrace/state/checkpoint_shard.h"

namespace millrace::state {
namespace {

// The message begins with the file's path, which the caller knows.
Damage damage(const std::filesystem::path& directory, const std::string& file, const std::string& message) {
  const std::string start = (directory / file).string() + ": ";
  return {file, message.starts_with(start) ? message.substr(start.size()) : message};
}

}  // namespace

std::vector<Damage> verify(const std::filesystem::path& directory) {
  std::vector<Damage> damages;
  const auto check = [&](const std::string& file, const auto& read) {
    try {
      read();
    } catch (const std::invalid_argument& error) {
      damages.push_back(damage(directory, file, error.what()));
    }
  };
  Manifest manifest;
  check("manifest.json", [&] { manifest = read_manifest(directory); });
  if (!damages.empty()) return damages;  // nothing is known of the others
  check("job.yaml", [&] { read_job(directory, manifest); });
  ShardNames names;
  const auto none = [](const std::string&) { return false; };
  for (const Shard& shard : manifest.shards) {
    check(shard.file, [&] { names.add(directory, shard, read_shard(directory, shard, none).names); });
  }
  return damages;
}

}  // namespace millrace::state
