// CIFAR-10 and CIFAR-100 in their binary form as published: records of one label byte (CIFAR-100: a coarse and a fine
// one) and 3072 bytes of pixels, the red, green and blue planes of 32 x 32 one after another.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/pending_file.h"
#include "millrace/data/files/file_pool.h"
#include "millrace/data/files/image_source.h"
#include "millrace/data/skip_log.h"

namespace millrace::data {

constexpr int kCifarSize = 32;
constexpr int64_t kCifarPixels = int64_t{3} * kCifarSize * kCifarSize;

enum class CifarLabels {
  Ten,         // CIFAR-10
  Hundred,     // CIFAR-100, the fine label
  SuperTwenty  // CIFAR-100, the coarse label
};

class Cifar : public ImageSource {
 public:
  // `path`: the folder of the files, the one above it, or one file. `classes`: of the model, 0: any. `skip`: an
  // incomplete last record is logged there and left out; null: it is an error.
  Cifar(const std::string& path, CifarLabels labels, bool train, int classes, SkipLog* skip);

  int64_t size() const override { return first_.back(); }
  void read(int64_t sample, StoredImage& into) const override;
  // Records are counted from 0.
  std::string place(int64_t sample) const override;
  int classes() const override;
  std::vector<std::string> class_names() const override { return names_; }
  int64_t stored_bytes() const override { return stored_bytes_; }
  uint64_t fingerprint() const override;

 private:
  int64_t label_bytes() const { return labels_ == CifarLabels::Ten ? 1 : 2; }
  int64_t record_bytes() const { return label_bytes() + kCifarPixels; }
  int64_t records_of(const OpenFile& file, SkipLog* skip) const;
  size_t file_of(int64_t sample) const;

  CifarLabels labels_;
  int model_classes_;
  FilePool files_;
  std::vector<int64_t> first_;  // each file's first sample, and the number of all
  std::vector<std::string> names_;
  int64_t stored_bytes_ = 0;
};

// Where the files of a split stand, in order; empty where `path` is a folder without them.
std::vector<std::string> cifar_files(const std::string& path, CifarLabels labels, bool train);

// The published name of the file of class names.
const char* cifar_names_file(CifarLabels labels);

class CifarWriter {
 public:
  // `fine`: CIFAR-100, with 0 for every coarse label that is not given.
  CifarWriter(const std::string& path, bool fine) : file_(path), fine_(fine) {}

  // Three planes of 32 x 32; the label fits the format.
  void add(std::span<const uint8_t> planes, int32_t label, int32_t coarse_label = 0);
  // The file appears under its name with this, and not without it.
  void finish() { file_.put_in_place(); }

  int64_t bytes() const { return file_.bytes(); }

 private:
  PendingFile file_;
  bool fine_;
};

}  // namespace millrace::data
