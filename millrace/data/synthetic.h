// Random pixels and labels: nothing to learn, nothing to read. For measuring speed.
#pragma once

#include "millrace/data/image_format.h"

namespace millrace::data {

class Synthetic : public Dataset {
 public:
  Synthetic(const ImageFormat& format, int64_t samples, bool one_fixed_batch, uint64_t seed, Split split);

  int64_t size() const override { return samples_; }
  int64_t feature_bytes() const override { return format_.elements() * int64_t{sizeof(float)}; }
  bool one_fixed_batch() const override { return one_fixed_batch_; }
  std::unique_ptr<Reader> reader() const override { return std::make_unique<StatelessReader<Synthetic>>(*this); }
  void fill(std::span<const int64_t> samples, int64_t epoch, float* images, int32_t* labels) const;

 private:
  ImageFormat format_;
  int64_t samples_;
  bool one_fixed_batch_;
  uint64_t pixel_key_;
  uint64_t label_key_;
};

}  // namespace millrace::data
