// Pictures in OneFlow's OFRecord files: a folder of part-00000, part-00001, ... of any lengths, or one file. Opening
// finds every record's place; reading one is one pread into the caller's memory. Nothing of the contents is kept.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/data/files/file_pool.h"
#include "millrace/data/files/image_source.h"
#include "millrace/data/files/ofrecord_index.h"
#include "millrace/data/skip_log.h"

namespace millrace::data {

class OfRecordFiles : public ImageSource {
 public:
  // `classes`: labels must be below it; 0: as many as classes.txt beside the parts names, or any. `skip`: damage that
  // hides the rest of a part is logged there and that rest left out; null: it is an error. `threads` index the parts.
  OfRecordFiles(const std::string& path, int classes, SkipLog* skip, int threads = 0);

  int64_t size() const override { return first_.back(); }
  void read(int64_t sample, StoredImage& into) const override;
  // Records are counted from 0.
  std::string place(int64_t sample) const override;
  int classes() const override { return static_cast<int>(names_.size()); }
  std::vector<std::string> class_names() const override { return names_; }
  int64_t stored_bytes() const override { return stored_bytes_; }
  uint64_t fingerprint() const override;

  size_t num_parts() const { return parts_.size(); }
  int64_t part_records(size_t part) const { return parts_[part].records(); }
  size_t max_open_files() const { return files_.max_open(); }

 private:
  size_t part_of(int64_t sample) const;
  void check_label(int64_t sample, int64_t label) const;

  FilePool files_;
  int model_classes_;
  std::vector<RecordIndex> parts_;
  std::vector<int64_t> first_;  // each part's first sample, and the number of all
  std::vector<std::string> names_;
  int64_t stored_bytes_ = 0;
};

// The parts of a folder in the order they are read; `path` itself where it is a file.
std::vector<std::string> ofrecord_parts(const std::string& path);

}  // namespace millrace::data
