#include "millrace/data/files/open_images.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "millrace/base/error.h"
#include "millrace/data/files/cifar.h"
#include "millrace/data/files/image_folder.h"
#include "millrace/data/files/listing.h"
#include "millrace/data/files/ofrecord.h"

namespace millrace::data {
namespace {

namespace fs = std::filesystem;

constexpr std::array kTestNames{"validation", "val", "test"};

bool has_parts(const fs::path& folder) {
  return fs::is_directory(folder) && !files_beginning(folder.string(), "part-").empty();
}

// Folders of pictures. A few entries tell.
bool has_classes(const fs::path& folder) {
  if (!fs::is_directory(folder)) return false;
  for (const std::string& name : class_folders(folder.string())) {
    int looked_at = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder / name)) {
      if (is_picture(entry.path().filename().string())) return true;
      if (++looked_at == 100) break;
    }
  }
  return false;
}

// A class may be called "train" too, but then holds pictures, not folders.
bool is_split(ImageKind kind, const fs::path& folder) {
  if (!fs::is_directory(folder)) return false;
  return kind == ImageKind::OfRecord ? has_parts(folder) : !class_folders(folder.string()).empty();
}

std::optional<std::string> below(ImageKind kind, const std::string& path, bool train) {
  if (train && is_split(kind, fs::path(path) / "train")) return (fs::path(path) / "train").string();
  for (const char* name : kTestNames) {
    if (!train && is_split(kind, fs::path(path) / name)) return (fs::path(path) / name).string();
  }
  return std::nullopt;
}

CifarLabels labels_of(ImageKind kind) { return kind == ImageKind::Cifar10 ? CifarLabels::Ten : CifarLabels::Hundred; }

std::optional<ImageKind> guess_file(const fs::path& path) {
  const std::string name = path.filename().string();
  if (name.starts_with("part-")) return ImageKind::OfRecord;
  if (path.extension() != ".bin") return std::nullopt;
  const auto bytes = static_cast<int64_t>(fs::file_size(path));
  const bool ten = bytes > 0 && bytes % (kCifarPixels + 1) == 0;
  const bool hundred = bytes > 0 && bytes % (kCifarPixels + 2) == 0;
  const bool named_hundred = name == "train.bin" || name == "test.bin";  // decides where both would fit
  if (hundred && (!ten || named_hundred)) return ImageKind::Cifar100;
  if (ten) return ImageKind::Cifar10;
  return std::nullopt;
}

}  // namespace

std::optional<std::string> split_path(ImageKind kind, const std::string& path, bool train) {
  if (!fs::is_directory(path)) return path;
  if (kind == ImageKind::Cifar10 || kind == ImageKind::Cifar100) {
    return cifar_files(path, labels_of(kind), train).empty() ? std::nullopt : std::optional(path);
  }
  if (kind == ImageKind::OfRecord && has_parts(path)) return path;
  const auto asked = below(kind, path, train);
  if (asked || !below(kind, path, !train)) return asked ? asked : path;
  return std::nullopt;
}

std::unique_ptr<ImageSource> open_images(ImageKind kind, const std::string& path, bool train, int classes,
                                         SkipLog* skip) {
  if (kind == ImageKind::Cifar10 || kind == ImageKind::Cifar100) {
    return std::make_unique<Cifar>(path, labels_of(kind), train, classes, skip);
  }
  const auto split = split_path(kind, path, train);
  if (!split) {
    fail_input("{}: holds only the {} split; add a folder {} beside it, or name the split's own folder", path,
               train ? "test" : "training", train ? "train" : "validation, val or test");
  }
  if (kind == ImageKind::OfRecord) return std::make_unique<OfRecordFiles>(*split, classes, skip);
  return std::make_unique<ImageFolder>(*split, classes, skip);
}

std::optional<ImageKind> guess_kind(const std::string& path) {
  if (!fs::exists(path)) fail_input("{}: does not exist", path);
  if (!fs::is_directory(path)) return guess_file(path);
  if (has_parts(path)) return ImageKind::OfRecord;
  for (const ImageKind kind : {ImageKind::Cifar10, ImageKind::Cifar100}) {
    if (split_path(kind, path, true) || split_path(kind, path, false)) return kind;
  }
  if (below(ImageKind::OfRecord, path, true) || below(ImageKind::OfRecord, path, false)) return ImageKind::OfRecord;
  // "test" or "val" below a folder of splits is found as a class; either way it is a folder of pictures.
  if (has_classes(path)) return ImageKind::ImageFolder;
  return std::nullopt;
}

}  // namespace millrace::data
