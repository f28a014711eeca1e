// Samples by number: a data set fills images and labels for any sample ids straight into the caller's buffers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "millrace/job/job.h"

namespace millrace::data {

enum class Split { Train, Test };

// The label of a row that holds no sample (the end of a short batch).
constexpr int32_t kNoLabel = -1;

class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual int64_t size() const = 0;            // samples of one epoch
  virtual int64_t image_elements() const = 0;  // channels * height * width

  // True where the whole data set is one batch that never changes: made once, then read in place every step.
  virtual bool one_fixed_batch() const { return false; }

  // Writes the samples one after another: plain NCHW floats and a label each; either may be null. What is written
  // depends only on the seed, the sample and - for data sets that augment - the epoch.
  virtual void fill(std::span<const int64_t> samples, int64_t epoch, float* images, int32_t* labels) const = 0;
};

// The data set a job asks for. A split without samples is refused for training; for testing it has size 0.
std::unique_ptr<Dataset> make_dataset(const job::Job& job, Split split);

}  // namespace millrace::data
