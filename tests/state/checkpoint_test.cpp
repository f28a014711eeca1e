#include "millrace/state/checkpoint.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "millrace/base/random.h"
#include "millrace/state/checkpoint_manifest.h"
#include "millrace/state/checksum.h"
#include "millrace/state/safetensors.h"
#include "millrace/state/sealed_json.h"
#include "state/small_checkpoints.h"
#include "state/temporary_folder.h"

namespace millrace::state {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using testing::ThrowsMessage;

class Checkpoint : public TemporaryFolder {
 protected:
  // With a checksum that fits, as one who edits it deliberately would leave it.
  void write_edited_manifest(const std::string& from, const std::string& to) {
    std::string text = read_bytes(path("manifest.json"));
    const size_t place = text.find(from);
    ASSERT_NE(place, std::string::npos) << from;
    text.replace(place, from.size(), to);
    text.resize(text.rfind(",\n  \"xxh3\""));
    write_bytes(path("manifest.json"), text + ",\n  \"xxh3\": \"" + Checksum::of(text) + "\"\n}\n");
  }
  std::function<void()> reading_manifest() {
    return [this] { read_manifest(folder_); };
  }
  auto refuses(const std::string& file, const std::string& message) {
    return ThrowsMessage<std::invalid_argument>(AllOf(StartsWith(path(file) + ": "), HasSubstr(message)));
  }
  std::vector<std::string> damaged() const {
    std::vector<std::string> files;
    for (const Damage& damage : verify(folder_)) files.push_back(damage.file);
    return files;
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
};

// NaNs are not equal to themselves; the bits are what counts.
void expect_same(const State& a, const State& b) {
  EXPECT_EQ(to_bytes(a), to_bytes(b));
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.samples, b.samples);
}

TEST_F(Checkpoint, ComesBackToTheBit) {
  const State state = small_state();
  write_checkpoint(folder_, state);
  EXPECT_THAT(verify(folder_), ElementsAre());
  const Manifest manifest = read_manifest(folder_);
  expect_same(read_state(folder_, manifest), state);
  EXPECT_EQ(read_job(folder_, manifest), kJob);
  EXPECT_THAT(files(), ElementsAre("job.yaml", "manifest.json", "older-1-0.safetensors", "older-2-0.safetensors",
                                   "second_moment-0.safetensors", "velocity-0.safetensors", "watched-0.safetensors",
                                   "weights-0.safetensors"));
}

TEST_F(Checkpoint, TheManifestSaysWhatItWasGiven) {
  const State state = small_state();
  Manifest expected = small_manifest(state);
  expected.shards = write_shards(folder_, 3, state);
  ASSERT_EQ(expected.shards.size(), 6u);
  EXPECT_EQ(expected.shards[4].file, "older-1-3.safetensors");
  EXPECT_EQ(expected.shards[4].kind, ShardKind::Older);
  EXPECT_EQ(expected.shards[4].age, 1);
  EXPECT_EQ(expected.shards[4].updates, 499);
  EXPECT_EQ(expected.shards[4].bytes, static_cast<int64_t>(read_bytes(path("older-1-3.safetensors")).size()));
  expected.figures["perplexity"] = std::nan("");
  expected.evaluation_due = true;
  write_manifest(folder_, expected, kJob);
  expected.figures.erase("perplexity");  // JSON has no such number
  const Manifest manifest = read_manifest(folder_);
  EXPECT_TRUE(read_state(folder_, manifest).evaluation_due);
  expected.job_bytes = static_cast<int64_t>(kJob.size());
  expected.job_xxh3 = Checksum::of(kJob);
  EXPECT_EQ(manifest, expected);
  EXPECT_THAT(read_bytes(path("manifest.json")),
              StartsWith("{\n  \"format\": \"millrace checkpoint\",\n  \"version\": 1,\n  \"step\": 500,\n"));
}

TEST_F(Checkpoint, OfNothingIsOneToo) {
  write_checkpoint(folder_, State());
  EXPECT_THAT(files(), ElementsAre("job.yaml", "manifest.json"));
  EXPECT_THAT(verify(folder_), ElementsAre());
  expect_same(read_state(folder_, read_manifest(folder_)), State());
}

// Parts with updates of their own, as stages have them.
struct Parts {
  State first, second, both;
};
Parts two_parts() {
  Parts parts;
  parts.first = small_state();
  parts.second.params = {{"late.weight", {{2}, {1, 2}}}, {"late.bias", {{1}, {3}}}};
  parts.second.velocity = {{"late.weight", {{2}, {4, 5}}}};
  parts.second.older = {{{"late.bias", {{1}, {2}}}}};
  parts.second.updates = {{"late.weight", 498}, {"late.bias", 498}};
  parts.both = parts.first;
  State copy = parts.second;
  merge(parts.both, copy);
  return parts;
}

TEST_F(Checkpoint, OfSeveralPartsIsReadAsOne) {
  const Parts parts = two_parts();
  Manifest manifest = small_manifest(parts.both);
  manifest.shards = write_shards(folder_, 0, parts.first);
  write_shard_list(folder_, 1, write_shards(folder_, 1, parts.second));
  for (Shard& shard : take_shard_list(folder_, 1)) manifest.shards.push_back(shard);
  EXPECT_FALSE(std::filesystem::exists(path("shards-1.json")));
  EXPECT_THAT([this] { take_shard_list(folder_, 1); },
              ThrowsMessage<std::runtime_error>(path("shards-1.json") + ": is missing"));
  write_manifest(folder_, manifest, kJob);
  EXPECT_THAT(verify(folder_), ElementsAre());
  expect_same(read_state(folder_, read_manifest(folder_)), parts.both);
}

TEST_F(Checkpoint, PartsWithDifferentUpdatesAreRefused) {
  State state = small_state();
  state.updates["scalar"] = 500;
  EXPECT_THAT([&] { write_shards(folder_, 2, state); },
              ThrowsMessage<std::runtime_error>(
                  folder_.string() + ": part 2: bias has had 499 updates and scalar 500; they belong in two parts"));
}

TEST_F(Checkpoint, OnlyWhatIsWantedIsRead) {
  const State all = small_state();
  write_checkpoint(folder_, all);
  const State some = read_state(folder_, read_manifest(folder_),
                                [](const std::string& name) { return name == "bias" || name == "x"; });
  State expected;
  expected.params["bias"] = all.params.at("bias");
  expected.velocity["bias"] = all.velocity.at("bias");
  expected.second_moment["bias"] = all.second_moment.at("bias");
  expected.watched["bias"] = all.watched.at("bias");
  expected.older = {{{"bias", all.older[0].at("bias")}}, {}};
  expected.updates["bias"] = 499;
  expected.loss_scale = all.loss_scale;
  expected.step = 500;
  expected.samples = 16000;
  expected.since = {1, 1};
  expect_same(some, expected);
}

TEST_F(Checkpoint, WhatIsNotWantedIsVerifiedAllTheSame) {
  write_checkpoint(folder_, small_state());
  std::string bytes = read_bytes(path("older-2-0.safetensors"));
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_bytes(path("older-2-0.safetensors"), bytes);
  const Manifest manifest = read_manifest(folder_);
  EXPECT_THAT([&] { read_state(folder_, manifest, [](const std::string&) { return false; }); },
              refuses("older-2-0.safetensors", "has checksum "));
}

TEST_F(Checkpoint, ShardsAreFilesThatAnyoneReads) {
  const State state = small_state();
  write_checkpoint(folder_, state);
  EXPECT_EQ(read_safetensors(path("velocity-0.safetensors")).tensors, state.velocity);
  EXPECT_EQ(read_shapes(path("weights-0.safetensors")).at("conv.weight"), (Shape{2, 1, 2, 1, 2}));
}

TEST_F(Checkpoint, ChecksumsAreThoseOfXxhsum) {
  if (std::system("xxhsum --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "needs xxhsum";
  State state = small_state();
  state.params["large"] = {{3, 1 << 20}, std::vector<float>(3 << 20, 1.5f)};  // more than a piece
  state.updates["large"] = 499;
  write_checkpoint(folder_, state);
  const Manifest manifest = read_manifest(folder_);
  std::map<std::string, std::string> checksums = {{"job.yaml", manifest.job_xxh3}};
  for (const Shard& shard : manifest.shards) checksums[shard.file] = shard.xxh3;
  for (const auto& [file, xxh3] : checksums) {
    FILE* pipe = ::popen(("xxhsum -H3 '" + path(file) + "'").c_str(), "r");
    char line[4096] = {};
    EXPECT_NE(std::fgets(line, sizeof line, pipe), nullptr);
    ::pclose(pipe);
    EXPECT_THAT(line, HasSubstr(xxh3)) << file;
  }
}

TEST_F(Checkpoint, WithoutAManifestIsOneDamage) {
  write_shards(folder_, 0, small_state());
  const std::vector<Damage> damages = verify(folder_);
  ASSERT_EQ(damages.size(), 1u);
  EXPECT_EQ(damages[0].file, "manifest.json");
  EXPECT_EQ(damages[0].what, "is missing");
  EXPECT_EQ(verify(path("no/such")).size(), 1u);
  EXPECT_THAT(reading_manifest(), ThrowsMessage<std::invalid_argument>(path("manifest.json") + ": is missing"));
}

TEST_F(Checkpoint, EveryDamageIsNamed) {
  write_checkpoint(folder_, small_state());
  std::filesystem::remove(path("velocity-0.safetensors"));
  std::filesystem::resize_file(path("weights-0.safetensors"), 100);
  write_bytes(path("job.yaml"), std::string(kJob.size(), ' '));
  const Manifest manifest = read_manifest(folder_);
  std::vector<std::string> lines;
  for (const Damage& damage : verify(folder_)) lines.push_back(damage.file + " " + damage.what);
  EXPECT_THAT(lines, ElementsAre(StartsWith("job.yaml has checksum "),
                                 fmt::format("weights-0.safetensors has 100 bytes, the manifest says {}",
                                             manifest.shards[0].bytes),
                                 "velocity-0.safetensors is missing"));
}

// One change to one file, never none.
std::string corrupted(const std::string& bytes, const RandomBlock& words) {
  std::string changed = bytes;
  const size_t place = words[1] % bytes.size();
  switch (words[0] % 5) {
    case 0: changed[place] = static_cast<char>(bytes[place] ^ (1 << words[2] % 8)); break;
    case 1: changed.resize(place); break;
    case 2: changed.append(1 + words[2] % 64, static_cast<char>(words[3] % 2 * words[3])); break;
    case 3:
      std::fill_n(changed.begin() + static_cast<int64_t>(place), std::min<size_t>(words[2] % 64, bytes.size() - place),
                  '\0');
      break;
    case 4: changed.insert(place, 1, static_cast<char>(words[2])); break;
  }
  if (changed == bytes) changed[place] = static_cast<char>(bytes[place] + 1);
  return changed;
}

TEST_F(Checkpoint, EveryCorruptionIsFoundAndItsFileNamed) {
  write_checkpoint(folder_, small_state());
  const std::vector<std::string> names = files();
  const Manifest manifest = read_manifest(folder_);
  const RandomStream random(2025, 0, 0);
  const auto expect_found = [&](const std::string& file) {
    std::string message;
    try {
      const Manifest read = read_manifest(folder_);
      read_job(folder_, read);
      read_state(folder_, read);
    } catch (const std::invalid_argument& error) {
      message = error.what();
    }
    ASSERT_THAT(message, AllOf(StartsWith(path(file) + ": "), Not(HasSubstr("\n"))));
  };
  for (uint64_t trial = 0; trial < 1000; ++trial) {
    const RandomBlock choice = random.at(2 * trial), words = random.at(2 * trial + 1);
    const std::string file = names[choice[0] % names.size()], good = read_bytes(path(file));
    SCOPED_TRACE(fmt::format("trial {}: {}", trial, file));
    if (choice[1] % 10 == 0) {
      std::filesystem::remove(path(file));
    } else if (choice[1] % 10 == 1 && file != "manifest.json") {
      const std::string other = file == "job.yaml" ? names.back() : "job.yaml", others = read_bytes(path(other));
      write_bytes(path(file), others);
      write_bytes(path(other), good);
      ASSERT_THAT(damaged(), testing::UnorderedElementsAre(file, other));
      ASSERT_NO_FATAL_FAILURE(expect_found("job.yaml"));
      write_bytes(path(other), others);
      write_bytes(path(file), good);
      continue;
    } else {
      write_bytes(path(file), corrupted(good, words));
    }
    ASSERT_THAT(damaged(), ElementsAre(file));
    ASSERT_NO_FATAL_FAILURE(expect_found(file));
    write_bytes(path(file), good);
  }
  EXPECT_THAT(verify(folder_), ElementsAre());
}

TEST_F(Checkpoint, EveryChangedByteOfTheManifestIsFound) {
  write_checkpoint(folder_, small_state());
  const std::string good = read_bytes(path("manifest.json"));
  for (size_t place = 0; place < good.size(); ++place) {
    for (int bit : {0, 1, 5}) {
      std::string bad = good;
      bad[place] = static_cast<char>(bad[place] ^ (1 << bit));
      ASSERT_THROW(check_seal(bad, "m"), std::invalid_argument) << place;
    }
    ASSERT_THROW(check_seal(good.substr(0, place), "m"), std::invalid_argument) << place;
  }
  EXPECT_THROW(check_seal(good + "\n", "m"), std::invalid_argument);
  EXPECT_NO_THROW(check_seal(good, "m"));
}

TEST_F(Checkpoint, ShardsThatAreSwappedAreFound) {
  write_checkpoint(folder_, small_state());
  std::filesystem::rename(path("velocity-0.safetensors"), path("x"));
  std::filesystem::rename(path("older-1-0.safetensors"), path("velocity-0.safetensors"));
  std::filesystem::rename(path("x"), path("older-1-0.safetensors"));
  EXPECT_THAT(damaged(), ElementsAre("velocity-0.safetensors", "older-1-0.safetensors"));
}

TEST_F(Checkpoint, VersionsToComeAreToldFromDamage) {
  write_checkpoint(folder_, small_state());
  write_edited_manifest("\"version\": 1,", "\"version\": 2,");
  EXPECT_THAT(reading_manifest(),
              refuses("manifest.json", "is of version 2, this millrace reads version 1: a newer millrace is needed"));
  write_edited_manifest("\"version\": 2,", "\"version\": 1,");
  EXPECT_NO_THROW(reading_manifest()());
  write_edited_manifest("millrace checkpoint", "other checkpoint");
  EXPECT_THAT(reading_manifest(), refuses("manifest.json", "is not of the format \"millrace checkpoint\""));
}

TEST_F(Checkpoint, NamesThatLeaveTheDirectoryAreRefused) {
  write_checkpoint(folder_, small_state());
  const std::string good = read_bytes(path("manifest.json"));
  const auto rename_shard = [&](const std::string& name) {
    write_bytes(path("manifest.json"), good);
    write_edited_manifest("\"weights-0.safetensors\"", "\"" + name + "\"");
  };
  for (const char* name :
       {"../weights-0.safetensors", "/etc/passwd", "a/b", ".hidden", "..", "", "a b", "a\\u0000b", "a\\n", "\u00e4"}) {
    rename_shard(name);
    EXPECT_THAT(reading_manifest(), refuses("manifest.json", "is not a plain name within the checkpoint's directory"));
    EXPECT_THAT(damaged(), ElementsAre("manifest.json"));
  }
  for (const char* name : {"manifest.json", "job.yaml", "velocity-0.safetensors"}) {
    rename_shard(name);
    EXPECT_THAT(reading_manifest(), refuses("manifest.json", fmt::format("lists {} twice", name)));
  }
}

TEST_F(Checkpoint, ManifestsThatCannotBeAreRefused) {
  write_checkpoint(folder_, small_state());
  const std::string good = read_bytes(path("manifest.json"));
  const auto expect_refused = [&](const std::string& from, const std::string& to, const std::string& message) {
    write_bytes(path("manifest.json"), good);
    write_edited_manifest(from, to);
    EXPECT_THAT(reading_manifest(), refuses("manifest.json", message)) << to;
  };
  expect_refused("\"step\": 500", "\"step\": -500", "\"step\" is not a whole number of at least 0");
  expect_refused("\"step\": 500", "\"step\": 500.0", "\"step\" is not a whole number");
  expect_refused("\"step\": 500", "\"step\": 9223372036854775808", "\"step\" is not a whole number");
  expect_refused("\"step\": 500", "\"step\": 500, \"step\": 501", "has a key twice");
  expect_refused("\"step\"", "\"stop\"", "has no \"step\"");
  expect_refused("\"step\": 500", "\"step\": 500, \"evaluation_due\": 1", "\"evaluation_due\" is not true or false");
  expect_refused("65536.0", "1e39", "is no float");
  expect_refused("65536.0", "1e400", "beyond all bounds");
  expect_refused("65536.0", "null", "\"loss_scale\" is not a finite number");
  expect_refused("\"loss\": 2.5", "\"loss\": \"2.5\"", "\"figures\" is not a finite number");
  expect_refused("\"kind\": \"velocity\"", "\"kind\": \"speed\"", "shard 1: kind \"speed\" is unknown");
  expect_refused("\"age\": 1", "\"age\": 3", "has weights of age 2 but none of age 1");
  expect_refused("\"age\": 1", "\"age\": 0", "age 0 cannot be");
  expect_refused("\"age\": 2", "\"age\": 4294967298", "age 4294967298 cannot be");
  expect_refused("\"shards\": [", "\"shards\": [[[[[[", "is nested too deeply");
  expect_refused("\"shards\": [", "\"shards\": [1,", "shard 0: is not an object");
  expect_refused("\"plan\": ", "\"plan\": x", "is not valid JSON at byte");
  write_bytes(path("manifest.json"), std::string((16 << 20) + 1, ' '));
  EXPECT_THAT(reading_manifest(), refuses("manifest.json", "has 16777217 bytes, at most 16777216 can be read"));
}

TEST_F(Checkpoint, WhatCouldNotBeReadIsNotWritten) {
  Manifest manifest = small_manifest(small_state());
  manifest.epoch = std::nan("");
  EXPECT_THAT([&] { write_manifest(folder_, manifest, kJob); },
              refuses("manifest.json", "\"epoch\" is not a finite number"));
  manifest.epoch = 0;
  manifest.plan = "\xFF";
  EXPECT_THAT([&] { write_manifest(folder_, manifest, kJob); }, refuses("manifest.json", "is not UTF-8"));
  EXPECT_THAT(files(), ElementsAre());
}

TEST_F(Checkpoint, TensorsThatAreThereTwiceAreRefused) {
  const State state = small_state();
  Manifest manifest = small_manifest(state);
  manifest.shards = write_shards(folder_, 0, state);
  State again;
  again.velocity = {{"scalar", {{}, {1}}}};
  manifest.shards.push_back(write_shards(folder_, 1, again).at(0));
  write_manifest(folder_, manifest, kJob);
  EXPECT_THAT([&] { read_state(folder_, manifest); },
              refuses("velocity-1.safetensors", "holds tensor \"scalar\", which velocity-0.safetensors holds too"));
  EXPECT_THAT(damaged(), ElementsAre("velocity-1.safetensors"));
}

// A shard that others wrote, listed with its right size and checksum.
TEST_F(Checkpoint, ShardsAreCheckedBeyondTheirChecksum) {
  const auto write_as_shard = [&](const std::string& header, size_t data_bytes) {
    uint64_t length = header.size();
    const std::string bytes =
        std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + std::string(data_bytes, '\0');
    write_bytes(path("w"), bytes);
    Manifest manifest;
    manifest.shards = {{.file = "w", .bytes = static_cast<int64_t>(bytes.size()), .xxh3 = Checksum::of(bytes)}};
    write_manifest(folder_, manifest, kJob);
    return [this] { read_state(folder_, read_manifest(folder_)); };
  };
  EXPECT_NO_THROW(write_as_shard(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})", 4)());
  EXPECT_THAT(write_as_shard(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})", 8),
              refuses("w", "4 unused bytes lie after the last tensor"));
  EXPECT_THAT(write_as_shard(R"({"a": {"dtype": "F16", "shape": [1], "data_offsets": [0, 2]}})", 2),
              refuses("w", "tensor \"a\" is F16; a checkpoint's are F32"));
  EXPECT_THAT(write_as_shard("{", 0), refuses("w", "the header is not valid JSON"));
  EXPECT_THAT(damaged(), ElementsAre("w"));
}

TEST_F(Checkpoint, SymbolicLinksAndPipesAreRefused) {
  write_checkpoint(folder_, small_state());
  std::filesystem::rename(path("velocity-0.safetensors"), path("elsewhere"));
  std::filesystem::create_symlink(path("elsewhere"), path("velocity-0.safetensors"));
  EXPECT_THAT([this] { read_state(folder_, read_manifest(folder_)); },
              refuses("velocity-0.safetensors", "is a symbolic link"));
  EXPECT_THAT(damaged(), ElementsAre("velocity-0.safetensors"));
  std::filesystem::remove(path("velocity-0.safetensors"));
  ASSERT_EQ(::mkfifo(path("velocity-0.safetensors").c_str(), 0600), 0);
  EXPECT_THAT([this] { read_state(folder_, read_manifest(folder_)); },
              refuses("velocity-0.safetensors", "is not a file"));
  std::filesystem::rename(path("manifest.json"), path("m"));
  std::filesystem::create_symlink("m", path("manifest.json"));
  EXPECT_THAT(reading_manifest(), refuses("manifest.json", "is a symbolic link"));
}

TEST_F(Checkpoint, FilesAreAsTheUmaskSays) {
  const mode_t before = ::umask(0);
  write_checkpoint(folder_, small_state());
  ::umask(027);
  write_safetensors(path("private"), small_state().velocity);
  ::umask(before);
  struct stat status;
  for (const std::string& file : files()) {
    ASSERT_EQ(::stat(path(file).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, file == "private" ? 0640u : 0666u) << file;
  }
}

TEST_F(Checkpoint, WritingWhereNothingCanBeSaysSo) {
  write_bytes(path("file"), "");
  EXPECT_THAT(
      [this] { write_shards(path("file"), 0, small_state()); },
      ThrowsMessage<std::runtime_error>(path("file/weights-0.safetensors") + ": cannot be created: Not a directory"));
  EXPECT_THAT(
      [this] { write_manifest(path("no"), Manifest(), kJob); },
      ThrowsMessage<std::runtime_error>(path("no/job.yaml") + ": cannot be created: No such file or directory"));
}

TEST_F(Checkpoint, AFullDiskIsSaidAndLeavesNoFileUnderItsName) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {64, 64};  // bytes of a file
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_shards(folder_, 0, small_state());
    } catch (const std::runtime_error& error) {
      ::_exit(error.what() == path("weights-0.safetensors") + ": cannot be written: File too large" ? 0 : 2);
    }
    ::_exit(1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_THAT(files(), ElementsAre());
}

TEST_F(Checkpoint, KnowsWhatIsFrozenAndWhatIsAboutToBe) {
  const State state = small_state();
  Manifest manifest = small_manifest(state);
  manifest.shards = write_shards(folder_, 0, state);
  manifest.freezing = plan::FreezeState{.frozen = 4,
                                        .before = 2,
                                        .intervals = 3,
                                        .evaluation = plan::FreezeState::Evaluation{0.5, 1},
                                        .best_loss = 0.25,
                                        .decided_at = 95,
                                        .next = 7,
                                        .boundary = 100};
  write_manifest(folder_, manifest, kJob);
  EXPECT_EQ(read_manifest(folder_).freezing, manifest.freezing);
  manifest.freezing->evaluation->loss = std::nan("");
  write_manifest(folder_, manifest, kJob);
  EXPECT_TRUE(std::isnan(read_manifest(folder_).freezing->evaluation.value().loss));
  EXPECT_EQ(read_manifest(folder_).freezing->evaluation->before, 1);
  manifest.freezing = plan::FreezeState{};
  write_manifest(folder_, manifest, kJob);
  EXPECT_EQ(read_manifest(folder_).freezing, manifest.freezing);
}

}  // namespace
}  // namespace millrace::state
