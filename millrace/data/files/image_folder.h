// Pictures as files: one folder per class, the classes numbered in the order of their names (as torchvision does),
// *.jpg, *.jpeg and *.png in any case, at any depth below. Hidden files are passed over, others too, but counted.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/data/files/image_source.h"
#include "millrace/data/skip_log.h"

namespace millrace::data {

class ImageFolder : public ImageSource {
 public:
  // `classes`: of the model, 0: any. `skip`: a class without pictures is logged there and keeps its number; null: it
  // is an error. `threads` list the folders.
  ImageFolder(const std::string& path, int classes, SkipLog* skip, int threads = 0);

  int64_t size() const override { return static_cast<int64_t>(name_begin_.size()) - 1; }
  void read(int64_t sample, StoredImage& into) const override;
  // The file's path.
  std::string place(int64_t sample) const override;
  int classes() const override { return static_cast<int>(class_names_.size()); }
  std::vector<std::string> class_names() const override { return class_names_; }
  // Looks at every file.
  int64_t stored_bytes() const override;
  uint64_t fingerprint() const override;

  // Files that are no pictures.
  int64_t ignored() const { return ignored_; }

 private:
  int label_of(int64_t sample) const;

  std::string root_;
  std::vector<std::string> class_names_;
  std::vector<int64_t> first_;       // each class's first sample, and the number of all
  std::string names_;                // below the class's folder, one after another
  std::vector<int64_t> name_begin_;  // in names_; one more than there are samples
  int64_t ignored_ = 0;
};

// By its name.
bool is_picture(std::string_view file_name);

// The folders that count as classes, sorted by name.
std::vector<std::string> class_folders(const std::string& path);

}  // namespace millrace::data
