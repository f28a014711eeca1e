// Any bytes as a checkpoint's manifest.json: only the errors a caller expects, names that stay in the directory, and
// what is read is written and read again as it was. The checksum is passed by: no fuzzer guesses it.
// For clang's libFuzzer (-fsanitize=fuzzer,address,undefined); seeds in corpus/checkpoint.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "millrace/state/checkpoint_manifest.h"
#include "millrace/state/sealed_json.h"

namespace {

using namespace millrace::state;

const std::string kName = "manifest.json";

template <typename Read>
void expect_one_line(Read read) {
  try {
    read();
  } catch (const std::invalid_argument& error) {
    const std::string line = error.what();
    if (!line.starts_with(kName + ": ") || line.find('\n') != std::string::npos) std::abort();
  }
}

void check_shard(const Shard& shard) {
  if (shard.file.empty() || shard.file.front() == '.' || shard.file.find('/') != std::string::npos) std::abort();
  if (shard.bytes < 0 || shard.updates < 0 || shard.xxh3.size() != 16) std::abort();
  if ((shard.kind == ShardKind::Older) != (shard.age > 0)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  expect_one_line([&] { check_seal(text, kName); });
  expect_one_line([&] {
    for (const Shard& shard : parse_shard_list(text, kName)) check_shard(shard);
  });
  expect_one_line([&] {
    const Manifest manifest = parse_manifest(text, kName);
    for (const Shard& shard : manifest.shards) check_shard(shard);
    if (!std::isfinite(manifest.epoch)) std::abort();
    const std::string again = manifest_text(manifest, kName);
    check_seal(again, kName);
    if (!(parse_manifest(again, kName) == manifest)) std::abort();
  });
  return 0;
}
