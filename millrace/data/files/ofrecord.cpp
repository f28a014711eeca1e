#include "millrace/data/files/ofrecord.h"

#include <algorithm>
#include <cassert>
#include <filesystem>

#include "millrace/base/error.h"
#include "millrace/base/random.h"
#include "millrace/data/bad_sample.h"
#include "millrace/data/files/listing.h"
#include "millrace/data/files/ofrecord_image.h"
#include "millrace/data/files/parallel.h"

namespace millrace::data {
namespace {

namespace fs = std::filesystem;

std::string names_file(const std::string& path) {
  return ((fs::is_directory(path) ? fs::path(path) : fs::path(path).parent_path()) / "classes.txt").string();
}

}  // namespace

std::vector<std::string> ofrecord_parts(const std::string& path) {
  if (!fs::exists(path)) fail_input("{}: does not exist; name a folder of OFRecord files part-00000, ... or one", path);
  if (!fs::is_directory(path)) return {path};
  std::vector<std::string> parts = files_beginning(path, "part-");
  if (parts.empty()) {
    fail_input("{}: holds no file part-*; name the folder in which part-00000 stands, or one such file", path);
  }
  return parts;
}

OfRecordFiles::OfRecordFiles(const std::string& path, int classes, SkipLog* skip, int threads)
    : files_(ofrecord_parts(path)),
      model_classes_(classes),
      parts_(files_.size()),
      names_(read_class_names(names_file(path))) {
  std::vector<int64_t> sizes(files_.size());
  for_each_piece(static_cast<int64_t>(files_.size()), threads, [&](int64_t part) {
    const auto file = files_.get(static_cast<size_t>(part));
    parts_[part] = index_records(*file);
    sizes[part] = file->size();
  });

  first_.push_back(0);
  for (size_t part = 0; part < parts_.size(); ++part) {
    RecordIndex& index = parts_[part];
    if (!index.damage.empty() && skip == nullptr) {
      fail_sample("{}; write the part again, or set data.on_error: skip to do without its last {} bytes", index.damage,
                  index.lost_bytes);
    }
    if (!index.damage.empty()) {
      skip->add(fmt::format("{}; the last {} bytes of the part are left out", index.damage, index.lost_bytes));
    }
    first_.push_back(first_.back() + index.records());
    stored_bytes_ += sizes[part];
  }
  if (size() == 0) {
    fail_input("{}: {} part{}, but no record in {}; name a folder of OFRecord files with pictures", path, parts_.size(),
               parts_.size() == 1 ? "" : "s", parts_.size() == 1 ? "it" : "them");
  }
}

void OfRecordFiles::read(int64_t sample, StoredImage& into) const {
  const size_t part = part_of(sample);
  const int64_t record = sample - first_[part];
  const int64_t at = parts_[part].starts[record] + kLengthBytes;
  const auto bytes = static_cast<size_t>(parts_[part].starts[record + 1] - at);
  into.raw_size = 0;
  into.bytes.resize(bytes);
  const size_t got = files_.get(part)->read_at(at, into.bytes.data(), bytes);
  if (got < bytes) {
    fail_run("{}: ends {} bytes into its {} bytes at byte {}; the file has changed since it was opened", place(sample),
             got, bytes, at);
  }
  int64_t label = 0;
  try {
    label = take_picture(into.bytes);
  } catch (const BadSample& error) {
    fail_sample("{}: {} (byte {})", place(sample), error.what(), at);
  }
  check_label(sample, label);
  into.label = static_cast<int32_t>(label);
}

// Without a limit a label still has to be none of those that mean something else.
void OfRecordFiles::check_label(int64_t sample, int64_t label) const {
  if (model_classes_ > 0 && (label < 0 || label >= model_classes_)) {
    fail_sample("{}: label {}, the model has classes 0-{}; write labels from 0, or set model.classes", place(sample),
                label, model_classes_ - 1);
  }
  if (model_classes_ == 0 && !names_.empty() && (label < 0 || label >= classes())) {
    fail_sample("{}: label {}, classes.txt names classes 0-{}; add the missing names", place(sample), label,
                classes() - 1);
  }
  if (label < 0 || label > INT32_MAX) fail_sample("{}: label {}; write labels from 0", place(sample), label);
}

std::string OfRecordFiles::place(int64_t sample) const {
  const size_t part = part_of(sample);
  return fmt::format("{}: record {}", files_.path(part), sample - first_[part]);
}

uint64_t OfRecordFiles::fingerprint() const {
  uint64_t hash = 0;
  for (size_t part = 0; part < parts_.size(); ++part) {
    hash = RandomStream::mix(hash, hash_name(fs::path(files_.path(part)).filename().string()));
    hash = RandomStream::mix(hash, static_cast<uint64_t>(parts_[part].starts.back()));
  }
  return hash;
}

size_t OfRecordFiles::part_of(int64_t sample) const {
  assert(sample >= 0 && sample < size());
  return static_cast<size_t>(std::upper_bound(first_.begin(), first_.end(), sample) - first_.begin()) - 1;
}

}  // namespace millrace::data
