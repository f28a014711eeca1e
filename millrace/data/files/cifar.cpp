#include "millrace/data/files/cifar.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <filesystem>

#include "millrace/base/error.h"
#include "millrace/base/random.h"
#include "millrace/data/bad_sample.h"
#include "millrace/data/files/listing.h"

namespace millrace::data {
namespace {

namespace fs = std::filesystem;

const char* set_name(CifarLabels labels) { return labels == CifarLabels::Ten ? "CIFAR-10" : "CIFAR-100"; }

int classes_of(CifarLabels labels) {
  switch (labels) {
    case CifarLabels::Ten: return 10;
    case CifarLabels::Hundred: return 100;
    case CifarLabels::SuperTwenty: return 20;
  }
  return 0;
}

const char* expected_files(CifarLabels labels, bool train) {
  if (labels == CifarLabels::Ten) return train ? "data_batch_1.bin, data_batch_2.bin, ..." : "test_batch.bin";
  return train ? "train.bin" : "test.bin";
}

// The folder itself or, where the archive was unpacked into it, the archive's own.
fs::path folder_of(const std::string& path, CifarLabels labels) {
  const fs::path unpacked = fs::path(path) / (labels == CifarLabels::Ten ? "cifar-10-batches-bin" : "cifar-100-binary");
  return fs::is_directory(unpacked) ? unpacked : fs::path(path);
}

std::vector<std::string> existing_files(const std::string& path, CifarLabels labels, bool train) {
  if (!fs::exists(path)) {
    fail_input("{}: does not exist; name the folder of {}'s binary files ({})", path, set_name(labels),
               expected_files(labels, train));
  }
  std::vector<std::string> files = cifar_files(path, labels, train);
  if (files.empty()) {
    fail_input("{}: holds no {}; name the folder in which the binary form of {} was unpacked", path,
               expected_files(labels, train), set_name(labels));
  }
  return files;
}

}  // namespace

std::vector<std::string> cifar_files(const std::string& path, CifarLabels labels, bool train) {
  if (!fs::is_directory(path)) return {path};
  const fs::path folder = folder_of(path, labels);
  std::vector<std::string> files;
  if (labels == CifarLabels::Ten && train) {
    for (int batch = 1; fs::exists(folder / fmt::format("data_batch_{}.bin", batch)); ++batch) {
      files.push_back((folder / fmt::format("data_batch_{}.bin", batch)).string());
    }
    // One that is missing in between would go unnoticed.
    if (files_beginning(folder.string(), "data_batch_").size() != files.size()) {
      fail_input("{}: data_batch_{}.bin is missing, and there are later ones; unpack the set again", folder.string(),
                 files.size() + 1);
    }
  } else if (fs::exists(folder / expected_files(labels, train))) {
    files.push_back((folder / expected_files(labels, train)).string());
  }
  return files;
}

const char* cifar_names_file(CifarLabels labels) {
  switch (labels) {
    case CifarLabels::Ten: return "batches.meta.txt";
    case CifarLabels::Hundred: return "fine_label_names.txt";
    case CifarLabels::SuperTwenty: return "coarse_label_names.txt";
  }
  return "";
}

Cifar::Cifar(const std::string& path, CifarLabels labels, bool train, int classes, SkipLog* skip)
    : labels_(labels), model_classes_(classes), files_(existing_files(path, labels, train)) {
  first_.push_back(0);
  for (size_t i = 0; i < files_.size(); ++i) {
    const auto file = files_.get(i);
    first_.push_back(first_.back() + records_of(*file, skip));
    stored_bytes_ += file->size();
  }
  if (size() == 0) {
    fail_input("{}: no record in {}; name {}'s binary files with pictures", path, files_.path(0), set_name(labels));
  }
  names_ = read_class_names((fs::path(files_.path(0)).parent_path() / cifar_names_file(labels)).string());
  if (static_cast<int>(names_.size()) != this->classes()) names_.clear();  // not the names of these labels
}

int Cifar::classes() const { return classes_of(labels_); }

int64_t Cifar::records_of(const OpenFile& file, SkipLog* skip) const {
  const int64_t records = file.size() / record_bytes(), rest = file.size() % record_bytes();
  if (rest != 0) {
    const std::string reason = fmt::format("{}: {} bytes are {} records of {} and {} more", file.path(), file.size(),
                                           records, record_bytes(), rest);
    const int64_t other = kCifarPixels + 3 - label_bytes();
    if (skip == nullptr) {
      fail_sample("{}; {}", reason,
                  file.size() % other == 0 ? fmt::format("as {} it would be whole, set data.kind: {}",
                                                         labels_ == CifarLabels::Ten ? "CIFAR-100" : "CIFAR-10",
                                                         labels_ == CifarLabels::Ten ? "cifar100" : "cifar10")
                                           : fmt::format("unpack {} again", set_name(labels_)));
    }
    skip->add(fmt::format("{}; the last {} bytes of the file are left out", reason, rest));
  }
  return records;
}

void Cifar::read(int64_t sample, StoredImage& into) const {
  const size_t file = file_of(sample);
  const int64_t at = (sample - first_[file]) * record_bytes();
  const auto open = files_.get(file);
  // The labels apart from the pixels: these then lie where they are wanted.
  std::array<uint8_t, 2> head{};
  into.bytes.resize(kCifarPixels);
  into.raw_size = kCifarSize;
  const auto label_size = static_cast<size_t>(label_bytes());
  if (open->read_at(at, head.data(), label_size) < label_size ||
      open->read_at(at + label_bytes(), into.bytes.data(), into.bytes.size()) < into.bytes.size()) {
    fail_run("{}: ends before byte {}; the file has changed since it was opened", place(sample), at + record_bytes());
  }
  const int label = labels_ == CifarLabels::Hundred ? head[1] : head[0];
  if (label >= classes()) {
    fail_sample("{}: label {}, {} has classes 0-{}; the file is damaged or of another format (byte {})", place(sample),
                label, set_name(labels_), classes() - 1, at);
  }
  if (model_classes_ > 0 && label >= model_classes_) {
    fail_sample("{}: label {}, the model has classes 0-{}; set model.classes: {}", place(sample), label,
                model_classes_ - 1, classes());
  }
  into.label = label;
}

std::string Cifar::place(int64_t sample) const {
  const size_t file = file_of(sample);
  return fmt::format("{}: record {}", files_.path(file), sample - first_[file]);
}

uint64_t Cifar::fingerprint() const {
  uint64_t hash = hash_name(set_name(labels_));
  for (size_t file = 0; file < files_.size(); ++file) {
    hash = RandomStream::mix(hash, hash_name(fs::path(files_.path(file)).filename().string()));
    hash = RandomStream::mix(hash, static_cast<uint64_t>(first_[file + 1]));
  }
  return hash;
}

size_t Cifar::file_of(int64_t sample) const {
  assert(sample >= 0 && sample < size());
  return static_cast<size_t>(std::upper_bound(first_.begin(), first_.end(), sample) - first_.begin()) - 1;
}

void CifarWriter::add(std::span<const uint8_t> planes, int32_t label, int32_t coarse_label) {
  const CifarLabels labels = fine_ ? CifarLabels::Hundred : CifarLabels::Ten;
  if (static_cast<int64_t>(planes.size()) != kCifarPixels) {
    fail_input("{} bytes of pixels, a CIFAR picture has {}", planes.size(), kCifarPixels);
  }
  if (label < 0 || label >= classes_of(labels) || coarse_label < 0 ||
      coarse_label >= classes_of(CifarLabels::SuperTwenty)) {
    fail_input("label {}, {} has classes 0-{}", label, set_name(labels), classes_of(labels) - 1);
  }
  const std::array head{static_cast<uint8_t>(fine_ ? coarse_label : label), static_cast<uint8_t>(label)};
  file_.write(std::span(head).first(fine_ ? 2 : 1));
  file_.write(planes);
}

}  // namespace millrace::data
