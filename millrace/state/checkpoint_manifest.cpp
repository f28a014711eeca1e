#include "millrace/state/checkpoint_manifest.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/state/safetensors_layout.h"
#include "millrace/state/sealed_json.h"

namespace millrace::state {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Versions to come end with the same seal, so that they can be told from damage.
constexpr std::string_view kFormat = "millrace checkpoint", kShardListFormat = "millrace checkpoint shards";
constexpr int64_t kVersion = 1;
constexpr size_t kMostShards = 100'000;
constexpr int kDeepest = 3;  // {shards: [{}]}

constexpr ShardKind kKinds[] = {ShardKind::Weights, ShardKind::Velocity, ShardKind::SecondMoment, ShardKind::Watched,
                                ShardKind::Older};

// An object of the manifest; `where` is "manifest.json: " or "manifest.json: shard 3: ".
class Members {
 public:
  Members(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) fail_input("{}is not an object", where_);
  }

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    fail_input("{}{}", where_, fmt::format(format, std::forward<Args>(args)...));
  }

  const json& at(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) fail("has no \"{}\"", key);
    return *found;
  }
  std::string text(const char* key) const {
    if (!at(key).is_string()) fail("\"{}\" is not a text", key);
    return at(key).get<std::string>();
  }
  int64_t whole(const char* key) const {
    const json& value = at(key);
    if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
      fail("\"{}\" is not a whole number of at least 0", key);
    }
    return value.get<int64_t>();
  }
  double finite(const char* key, const json& value) const {
    if (!value.is_number() || !std::isfinite(value.get<double>())) fail("\"{}\" is not a finite number", key);
    return value.get<double>();
  }
  bool flag(const char* key) const {
    if (!object_.contains(key)) return false;
    if (!at(key).is_boolean()) fail("\"{}\" is not true or false", key);
    return at(key).get<bool>();
  }
  std::string checksum(const char* key) const {
    const std::string digits = text(key);
    const bool fits = digits.size() == 16 && digits.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (!fits) fail("\"{}\" is not 16 hexadecimal digits", key);
    return digits;
  }

 private:
  const json& object_;
  std::string where_;
};

bool is_plain_name(std::string_view name) {
  const auto plain = [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  return !name.empty() && name.size() <= 255 && name.front() != '.' && std::all_of(name.begin(), name.end(), plain);
}

Shard parse_shard(const json& object, const std::string& where) {
  const Members members(object, where);
  Shard shard;
  shard.file = members.text("file");
  if (!is_plain_name(shard.file)) {
    members.fail("file {} is not a plain name within the checkpoint's directory", shown(shard.file));
  }
  const std::string kind = members.text("kind");
  const auto found =
      std::find_if(std::begin(kKinds), std::end(kKinds), [&](ShardKind k) { return kind == kind_name(k); });
  if (found == std::end(kKinds)) members.fail("kind {} is unknown", shown(kind));
  shard.kind = *found;
  if (shard.kind == ShardKind::Older) {
    const int64_t age = members.whole("age");
    if (age < 1 || age > static_cast<int64_t>(kMostShards)) members.fail("age {} cannot be", age);
    shard.age = static_cast<int>(age);
  }
  shard.updates = members.whole("updates");
  shard.bytes = members.whole("bytes");
  shard.xxh3 = members.checksum("xxh3");
  return shard;
}

std::vector<Shard> parse_shards(const Members& members, const std::string& name) {
  const json& list = members.at("shards");
  if (!list.is_array()) members.fail("\"shards\" is not a list");
  if (list.size() > kMostShards) members.fail("has {} shards, at most {} can be read", list.size(), kMostShards);
  std::vector<Shard> shards;
  std::set<std::string> files = {"manifest.json", "job.yaml"};
  for (const json& object : list) {
    shards.push_back(parse_shard(object, fmt::format("{}: shard {}: ", name, shards.size())));
    if (!files.insert(shards.back().file).second) members.fail("lists {} twice", shards.back().file);
  }
  return shards;
}

ordered_json freezing_to_json(const plan::FreezeState& freezing) {
  ordered_json object = {{"frozen", freezing.frozen},
                         {"before", freezing.before},
                         {"intervals", freezing.intervals},
                         {"decided_at", freezing.decided_at + 1}};
  if (std::isfinite(freezing.best_loss)) object["best_loss"] = freezing.best_loss;
  if (const auto& last = freezing.evaluation) {  // a loss that is no number is null, as JSON has it
    object["evaluation"] = {{"loss", last->loss}, {"before", last->before}};
  }
  if (freezing.next >= 0) object["next"] = {{"frozen", freezing.next}, {"boundary", freezing.boundary}};
  return object;
}

plan::FreezeState parse_freezing(const json& object, const std::string& where) {
  const Members members(object, where);
  const auto layers = [&](const Members& from, const char* key) {
    constexpr int64_t kMostLayers = 1'000'000;
    const int64_t count = from.whole(key);
    if (count > kMostLayers) from.fail("\"{}\" {} cannot be", key, count);
    return static_cast<int>(count);
  };
  plan::FreezeState freezing;
  freezing.frozen = layers(members, "frozen");
  freezing.before = layers(members, "before");
  freezing.intervals = layers(members, "intervals");
  freezing.decided_at = members.whole("decided_at") - 1;  // steps, of which none is before the first
  if (object.contains("best_loss")) freezing.best_loss = members.finite("best_loss", object["best_loss"]);
  if (object.contains("evaluation")) {
    const Members last(object["evaluation"], where + "evaluation: ");
    const json& loss = last.at("loss");
    freezing.evaluation = {loss.is_null() ? std::nan("") : last.finite("loss", loss), layers(last, "before")};
  }
  if (!object.contains("next")) return freezing;
  const Members next(object["next"], where + "next: ");
  freezing.next = layers(next, "frozen");
  freezing.boundary = next.whole("boundary");
  return freezing;
}

// Ages without a gap: a reader counts on as many older versions as there are ages.
void check_ages(const std::vector<Shard>& shards, const std::string& name) {
  std::set<int> ages;
  for (const Shard& shard : shards) {
    if (shard.kind == ShardKind::Older) ages.insert(shard.age);
  }
  int expected = 1;
  for (int age : ages) {
    if (age != expected) fail_input("{}: has weights of age {} but none of age {}", name, age, expected);
    ++expected;
  }
}

json parse_versioned(const std::string& text, std::string_view format, const std::string& name) {
  json object = parse_object(text, kDeepest, name);
  const Members members(object, name + ": ");
  if (!object.contains("format") || object["format"] != format) members.fail("is not of the format \"{}\"", format);
  const int64_t version = members.whole("version");
  if (version > kVersion) {
    members.fail("is of version {}, this millrace reads version {}: a newer millrace is needed", version, kVersion);
  }
  if (version < kVersion) members.fail("is of version {}, which there never was", version);
  return object;
}

ordered_json shards_to_json(const std::vector<Shard>& shards) {
  ordered_json list = ordered_json::array();
  for (const Shard& shard : shards) {
    ordered_json object = {{"file", shard.file}, {"kind", kind_name(shard.kind)}};
    if (shard.kind == ShardKind::Older) object["age"] = shard.age;
    object["updates"] = shard.updates;
    object["bytes"] = shard.bytes;
    object["xxh3"] = shard.xxh3;
    list.push_back(std::move(object));
  }
  return list;
}

std::string to_text(const ordered_json& object, const std::string& name) {
  std::string text;
  try {
    text = sealed(object);
  } catch (const json::exception&) {
    fail_input("{}: a text in it is not UTF-8", name);
  }
  if (static_cast<int64_t>(text.size()) > kLargestManifest) {
    fail_input("{}: {} bytes are more than the {} that can be read", name, text.size(), kLargestManifest);
  }
  return text;
}

}  // namespace

const char* kind_name(ShardKind kind) {
  switch (kind) {
    case ShardKind::Weights: return "weights";
    case ShardKind::Velocity: return "velocity";
    case ShardKind::SecondMoment: return "second_moment";
    case ShardKind::Watched: return "watched";
    case ShardKind::Older: return "older";
  }
  return "";
}

std::string manifest_text(const Manifest& manifest, const std::string& name) {
  ordered_json figures = ordered_json::object();
  for (const auto& [figure, value] : manifest.figures) {
    if (std::isfinite(value)) figures[figure] = value;
  }
  ordered_json object = {{"format", kFormat},
                         {"version", kVersion},
                         {"step", manifest.step},
                         {"samples", manifest.samples},
                         {"epoch", manifest.epoch},
                         {"train_samples", manifest.train_samples},
                         {"loss_scale", manifest.loss_scale},
                         {"plan", manifest.plan},
                         {"figures", std::move(figures)},
                         {"job", {{"bytes", manifest.job_bytes}, {"xxh3", manifest.job_xxh3}}},
                         {"shards", shards_to_json(manifest.shards)}};
  if (manifest.freezing) object["freezing"] = freezing_to_json(*manifest.freezing);
  if (manifest.since != job::SizedSince()) {
    object["batch_since"] = {{"step", manifest.since.step}, {"epoch", manifest.since.epoch}};
  }
  if (manifest.evaluation_due) object["evaluation_due"] = true;  // seldom: others have no such member
  std::string text = to_text(object, name);
  parse_manifest(text, name);
  return text;
}

std::string shard_list_text(const std::vector<Shard>& shards, const std::string& name) {
  std::string text =
      to_text({{"format", kShardListFormat}, {"version", kVersion}, {"shards", shards_to_json(shards)}}, name);
  parse_shard_list(text, name);
  return text;
}

Manifest parse_manifest(const std::string& text, const std::string& name) {
  const json object = parse_versioned(text, kFormat, name);
  const Members members(object, name + ": ");
  Manifest manifest;
  manifest.step = members.whole("step");
  manifest.samples = members.whole("samples");
  manifest.epoch = members.finite("epoch", members.at("epoch"));
  manifest.train_samples = members.whole("train_samples");
  const json& scales = members.at("loss_scale");
  if (!scales.is_array()) members.fail("\"loss_scale\" is not a list");
  for (const json& scale : scales) {
    const double value = members.finite("loss_scale", scale);
    if (std::abs(value) > std::numeric_limits<float>::max()) members.fail("\"loss_scale\" {} is no float", value);
    manifest.loss_scale.push_back(static_cast<float>(value));
  }
  manifest.plan = members.text("plan");
  const json& figures = members.at("figures");
  if (!figures.is_object()) members.fail("\"figures\" is not an object");
  for (const auto& [figure, value] : figures.items()) manifest.figures[figure] = members.finite("figures", value);
  if (object.contains("batch_since")) {
    const Members since(object["batch_since"], name + ": batch_since: ");
    manifest.since = {since.whole("step"), since.whole("epoch")};
    if (manifest.since.step > manifest.step) members.fail("\"batch_since\" is behind \"step\"");
  }
  manifest.evaluation_due = members.flag("evaluation_due");
  const Members job(members.at("job"), name + ": job: ");
  manifest.job_bytes = job.whole("bytes");
  manifest.job_xxh3 = job.checksum("xxh3");
  if (object.contains("freezing")) manifest.freezing = parse_freezing(object["freezing"], name + ": freezing: ");
  manifest.shards = parse_shards(members, name);
  check_ages(manifest.shards, name);
  return manifest;
}

std::vector<Shard> parse_shard_list(const std::string& text, const std::string& name) {
  const json object = parse_versioned(text, kShardListFormat, name);
  return parse_shards(Members(object, name + ": "), name);
}

}  // namespace millrace::state
