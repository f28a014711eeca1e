#include "millrace/backend/choices.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

namespace millrace::backend {
namespace {

std::map<std::string, std::string> read_choices(const std::string& file) {
  std::ifstream stream(file);
  if (!stream) return {};
  const auto json = nlohmann::json::parse(stream, nullptr, /*allow_exceptions=*/false);
  std::map<std::string, std::string> choices;
  if (!json.is_object()) return {};  // a damaged cache is measured again
  for (const auto& [work, algorithm] : json.items()) {
    if (algorithm.is_string()) choices[work] = algorithm.get<std::string>();
  }
  return choices;
}

}  // namespace

Choices::Lock::Lock(const Choices& choices) {
  if (choices.file_.empty()) return;
  const std::filesystem::path folder = std::filesystem::path(choices.file_).parent_path();
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  descriptor_ = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor_ >= 0) flock(descriptor_, LOCK_EX);
}

Choices::Lock::~Lock() {
  if (descriptor_ >= 0) close(descriptor_);
}

Choices::Choices(std::string file) : file_(std::move(file)), chosen_(read_choices(file_)) {}

std::optional<std::string> Choices::find(const std::string& question) const {
  const auto found = chosen_.find(question);
  if (found == chosen_.end()) return std::nullopt;
  return found->second;
}

void Choices::read_file() { chosen_.merge(read_choices(file_)); }

void Choices::remember(const std::string& question, const std::string& answer) {
  chosen_[question] = answer;
  if (file_.empty()) return;
  // Another process may have written meanwhile: its choices stand, ours are added. A cache that cannot be
  // written is no reason to stop.
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(file_).parent_path(), ignored);
  auto merged = read_choices(file_);
  merged.insert(chosen_.begin(), chosen_.end());
  const std::string temporary = fmt::format("{}.{}", file_, getpid());
  {
    std::ofstream stream(temporary);
    stream << nlohmann::json(merged).dump(1) << '\n';
    if (!stream) return;
  }
  std::filesystem::rename(temporary, file_, ignored);
}

}  // namespace millrace::backend
