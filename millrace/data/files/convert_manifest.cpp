#include "millrace/data/files/convert_manifest.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "millrace/base/error.h"
#include "millrace/base/pending_file.h"

namespace millrace::data {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kTrainName = "convert.json";
constexpr const char* kTestName = "convert-test.json";  // CIFAR keeps both splits in one folder

bool is_cifar(ImageKind kind) { return kind == ImageKind::Cifar10 || kind == ImageKind::Cifar100; }

std::string dump(const json& value) { return value.dump(1, ' ', false, json::error_handler_t::replace); }

json identity_of(const ImageSource& source, const std::string& source_path, const ConvertOptions& options, int parts) {
  return {{"source",
           {{"path", fs::weakly_canonical(source_path).string()},
            {"samples", source.size()},
            {"bytes", source.stored_bytes()},
            {"files", fmt::format("{:016x}", source.fingerprint())}}},
          {"options",
           {{"to", name_of(options.to)},
            {"train", options.train},
            {"parts", parts},
            {"quality", options.quality},
            {"resize", options.resize},
            {"shuffle", options.shuffle},
            {"seed", options.shuffle ? options.seed : 0},
            {"on_error", options.skip_bad ? "skip" : "stop"}}}};
}

// "source.samples: 12, now 10; options.parts: ..."
std::string differences(const json& before, const json& now) {
  std::string text;
  for (const char* group : {"source", "options"}) {
    for (const auto& [key, value] : now[group].items()) {
      const json old = before.contains(group) && before[group].is_object() ? before[group].value(key, json()) : json();
      if (old == value) continue;
      text += fmt::format("{}{}.{} was {}, is {}", text.empty() ? "" : "; ", group, key,
                          old.dump(-1, ' ', true, json::error_handler_t::replace),
                          value.dump(-1, ' ', true, json::error_handler_t::replace));
    }
  }
  return text;
}

}  // namespace

ConvertManifest::ConvertManifest(const ImageSource& source, const std::string& source_path,
                                 const std::string& destination, const ConvertOptions& options, int parts) {
  const bool both_here = is_cifar(options.to);
  const fs::path folder(destination);
  path_ = (folder / (both_here && !options.train ? kTestName : kTrainName)).string();
  // Through text and back, so that it compares equal to what is read.
  identity_ = dump(identity_of(source, source_path, options, parts));
  if (fs::exists(path_)) {
    read(identity_);
    return;
  }
  const bool other_split = both_here && fs::exists(folder / (options.train ? kTestName : kTrainName));
  if (!other_split && !fs::is_empty(folder)) {
    fail_input("{}: is not empty and was not begun by a conversion; name a new folder", destination);
  }
  write();
}

void ConvertManifest::read(const std::string& identity) {
  std::ifstream stream(path_);
  const json before = json::parse(stream, nullptr, false);
  if (!before.is_object() || !before.contains("finished") || !before["finished"].is_array()) {
    fail_input("{}: is not a conversion's list of parts; name a new folder", path_);
  }
  const std::string different = differences(before, json::parse(identity));
  if (!different.empty()) {
    fail_input("{}: was begun by another conversion: {}; repeat that one, or name a new folder", path_, different);
  }
  try {
    for (const json& part : before["finished"]) {
      finished_[part.at("part").get<int>()] = {part.at("samples").get<int64_t>(), part.at("bytes").get<int64_t>(),
                                               part.at("skipped").get<std::vector<std::string>>()};
    }
  } catch (const json::exception&) {
    fail_input("{}: its finished parts cannot be read; name a new folder", path_);
  }
}

void ConvertManifest::finish(int part, FinishedPart about) {
  const std::lock_guard lock(mutex_);
  finished_[part] = std::move(about);
  write();
}

void ConvertManifest::write() const {
  json all = json::parse(identity_);
  all["finished"] = json::array();
  for (const auto& [part, about] : finished_) {
    all["finished"].push_back(
        {{"part", part}, {"samples", about.samples}, {"bytes", about.bytes}, {"skipped", about.skipped}});
  }
  write_file(path_, dump(all) + "\n");
}

}  // namespace millrace::data
