#include "millrace/data/files/image_folder.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "millrace/base/error.h"
#include "millrace/base/random.h"
#include "millrace/data/bad_sample.h"
#include "millrace/data/files/file_pool.h"
#include "millrace/data/files/parallel.h"

namespace millrace::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxPictureBytes = INT32_MAX;

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

struct ClassListing {
  std::vector<std::string> names;  // sorted
  int64_t ignored = 0;
};

ClassListing list_class(const fs::path& folder) {
  ClassListing listing;
  const size_t prefix = folder.string().size() + 1;
  for (auto entry = fs::recursive_directory_iterator(folder); entry != fs::recursive_directory_iterator(); ++entry) {
    if (is_hidden(entry->path())) {
      if (entry->is_directory()) entry.disable_recursion_pending();
      continue;
    }
    if (entry->is_directory()) continue;
    if (entry->is_regular_file() && is_picture(entry->path().filename().string())) {
      listing.names.push_back(entry->path().string().substr(prefix));
    } else {
      ++listing.ignored;
    }
  }
  std::sort(listing.names.begin(), listing.names.end());
  return listing;
}

}  // namespace

bool is_picture(std::string_view file_name) {
  const size_t dot = file_name.rfind('.');
  if (dot == std::string_view::npos || dot == 0) return false;
  std::string extension(file_name.substr(dot + 1));
  for (char& c : extension) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return extension == "jpg" || extension == "jpeg" || extension == "png";
}

std::vector<std::string> class_folders(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (!is_hidden(entry.path()) && entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

ImageFolder::ImageFolder(const std::string& path, int classes, SkipLog* skip, int threads) : root_(path) {
  if (!fs::is_directory(path)) {
    fail_input("{}: {}; name a folder with one folder of pictures per class", path,
               fs::exists(path) ? "is no folder" : "does not exist");
  }
  class_names_ = class_folders(path);
  if (class_names_.empty()) fail_input("{}: holds no folder; put each class's pictures into a folder of its own", path);
  if (classes > 0 && this->classes() > classes) {
    fail_input("{}: {} class folders, the model has {} classes; set model.classes: {}", path, class_names_.size(),
               classes, class_names_.size());
  }

  std::vector<ClassListing> listings(class_names_.size());
  for_each_piece(this->classes(), threads,
                 [&](int64_t label) { listings[label] = list_class(fs::path(root_) / class_names_[label]); });

  first_.push_back(0);
  name_begin_.push_back(0);
  for (size_t label = 0; label < listings.size(); ++label) {
    ClassListing& listing = listings[label];
    if (listing.names.empty()) {
      const std::string reason = fmt::format("{}: no .jpg, .jpeg or .png file in the class folder, {} others",
                                             (fs::path(root_) / class_names_[label]).string(), listing.ignored);
      if (skip == nullptr) fail_input("{}; add pictures or remove the folder", reason);
      skip->add(reason);
    }
    for (const std::string& name : listing.names) {
      names_ += name;
      name_begin_.push_back(static_cast<int64_t>(names_.size()));
    }
    first_.push_back(size());
    ignored_ += listing.ignored;
    listing = {};
  }
  names_.shrink_to_fit();
  name_begin_.shrink_to_fit();
  if (size() == 0) fail_input("{}: no picture in its {} class folders; add some", path, class_names_.size());
}

void ImageFolder::read(int64_t sample, StoredImage& into) const {
  const std::string path = place(sample);
  const int descriptor = open_to_read(path);
  if (descriptor < 0) {
    const int reason = errno;
    if (reason == EMFILE || reason == ENFILE) fail_run("{}: cannot be opened: {}", path, std::strerror(reason));
    fail_sample("{}: cannot be opened: {}", path, std::strerror(reason));
  }
  const OpenFile file(descriptor, path);
  if (file.size() <= 0 || file.size() > kMaxPictureBytes) {
    fail_sample("{}: {} bytes; a picture has 1-{}", path, file.size(), kMaxPictureBytes);
  }
  into.bytes.resize(static_cast<size_t>(file.size()));
  into.bytes.resize(file.read_at(0, into.bytes.data(), into.bytes.size()));
  into.raw_size = 0;
  into.label = label_of(sample);
}

std::string ImageFolder::place(int64_t sample) const {
  assert(sample >= 0 && sample < size());
  const auto begin = static_cast<size_t>(name_begin_[sample]), end = static_cast<size_t>(name_begin_[sample + 1]);
  return (fs::path(root_) / class_names_[label_of(sample)] / names_.substr(begin, end - begin)).string();
}

int64_t ImageFolder::stored_bytes() const {
  int64_t bytes = 0;
  for (int64_t sample = 0; sample < size(); ++sample) {
    std::error_code gone;
    const auto size = fs::file_size(place(sample), gone);
    if (!gone) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

uint64_t ImageFolder::fingerprint() const {
  uint64_t hash = hash_name(names_);
  for (size_t label = 0; label < class_names_.size(); ++label) {
    hash = RandomStream::mix(hash, hash_name(class_names_[label]));
    hash = RandomStream::mix(hash, static_cast<uint64_t>(first_[label + 1]));
  }
  return hash;
}

int ImageFolder::label_of(int64_t sample) const {
  return static_cast<int>(std::upper_bound(first_.begin(), first_.end(), sample) - first_.begin()) - 1;
}

}  // namespace millrace::data
