// Reading the shards of a checkpoint, one at a time. Throws std::invalid_argument with one line that names the file.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "millrace/state/checkpoint.h"

namespace millrace::state {

struct ShardContents {
  std::vector<std::string> names;         // of all its tensors
  std::map<std::string, Tensor> tensors;  // the wanted ones
};

// Size first, then the layout, and the checksum over all bytes before anything is given away. Holds no more than what
// is wanted.
ShardContents read_shard(const std::filesystem::path& directory, const Shard& shard,
                         const std::function<bool(const std::string&)>& wanted);

// That no tensor of a kind is in two shards.
class ShardNames {
 public:
  void add(const std::filesystem::path& directory, const Shard& shard, const std::vector<std::string>& names);

 private:
  std::map<std::tuple<ShardKind, int, std::string>, std::string> files_;
};

}  // namespace millrace::state
