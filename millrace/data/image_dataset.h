// Pictures from files: read, decoded, cut, resized and normalised sample by sample, straight into a batch.
#pragma once

#include <memory>

#include "millrace/data/dataset.h"
#include "millrace/data/files/image_source.h"
#include "millrace/data/image/transform.h"
#include "millrace/data/image_format.h"

namespace millrace::data {

class ImageDataset : public Dataset {
 public:
  // `skip` has what the source left out already, and gets what is skipped while reading; null: errors stop.
  ImageDataset(std::unique_ptr<ImageSource> source, ImageTransform transform, const ImageFormat& format,
               std::unique_ptr<SkipLog> skip);

  int64_t size() const override { return source_->size(); }
  int64_t feature_bytes() const override { return format_.elements() * int64_t{sizeof(float)}; }
  std::unique_ptr<Reader> reader() const override;
  const SkipLog* skipped() const override { return skip_.get(); }

 private:
  class ImageReader;

  std::unique_ptr<ImageSource> source_;
  ImageTransform transform_;
  ImageFormat format_;
  std::unique_ptr<SkipLog> skip_;
};

// The transform of a split, with what is automatic made plain: random crops for training and the middle for testing,
// CIFAR's small pictures padded and shifted.
job::Transform resolved_transform(const job::Job& job, Split split);

ImageTransform transform_of(const job::Job& job, Split split);

std::unique_ptr<Dataset> open_image_dataset(const job::Job& job, Split split);

}  // namespace millrace::data
