// manifest.json as text, and the list of one part's shards, which is of the same kind.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/state/checkpoint.h"

namespace millrace::state {

constexpr int64_t kLargestManifest = int64_t{16} << 20;  // bytes

const char* kind_name(ShardKind kind);  // "second_moment"

// Sealed: see sealed_json.h. Throw std::invalid_argument if what they wrote could not be read. Figures that are not
// finite, which JSON does not have, are left out.
std::string manifest_text(const Manifest& manifest, const std::string& name);
std::string shard_list_text(const std::vector<Shard>& shards, const std::string& name);

// Of text from anywhere; its checksum is the caller's to check. `name` begins every message.
Manifest parse_manifest(const std::string& text, const std::string& name);
std::vector<Shard> parse_shard_list(const std::string& text, const std::string& name);

}  // namespace millrace::state
