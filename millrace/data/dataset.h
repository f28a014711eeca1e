// Samples by number. A data set says what it holds; readers - one for each thread - write features and labels of any
// sample ids straight into the caller's buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "millrace/data/scorer.h"
#include "millrace/data/skip_log.h"
#include "millrace/job/job.h"

namespace millrace::data {

enum class Split { Train, Test };

// The label of a row that holds no sample: the end of a short batch, or a sample that was skipped.
constexpr int32_t kNoLabel = -1;
// The token where a text has ended, and everywhere in one that was skipped.
constexpr int32_t kNoToken = -1;

// A thread's own way into a data set, with whatever memory decoding needs. The data set outlives its readers.
class Reader {
 public:
  virtual ~Reader() = default;

  // Writes the samples one after another, either of both if not null. What is written depends only on the seed, the
  // sample and - for data sets that augment - the epoch. A sample that is skipped has pixels of zero, or kNoToken,
  // and kNoLabel.
  virtual void fill(std::span<const int64_t> samples, int64_t epoch, std::byte* features, int32_t* labels) = 0;
};

class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual int64_t size() const = 0;           // samples of one epoch
  virtual int64_t feature_bytes() const = 0;  // of one sample: floats channels x height x width, or int32 tokens
  virtual int64_t label_elements() const { return 1; }

  // True where the whole data set is one batch that never changes: made once, then read in place every step.
  virtual bool one_fixed_batch() const { return false; }

  virtual std::unique_ptr<Reader> reader() const = 0;

  // What it makes of a model's outputs; null where loss and accuracy are all. The data set outlives it.
  virtual std::unique_ptr<Scorer> scorer() const { return nullptr; }

  // What was left out so far (data.on_error: skip); null where nothing can be.
  virtual const SkipLog* skipped() const { return nullptr; }
};

// Whether a sample of the training split looks different in every epoch: random crops, mirrors.
bool changes_with_epoch(const job::Job& job);

// The data set a job asks for. A split without samples is refused for training; for testing it has size 0.
std::unique_ptr<Dataset> make_dataset(const job::Job& job, Split split);

}  // namespace millrace::data
