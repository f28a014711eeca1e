// Random tokens and labels: nothing to learn, nothing to read. For measuring the speed of models that read text.
#pragma once

#include "millrace/data/dataset.h"
#include "millrace/data/image_format.h"

namespace millrace::data {

// What a model that reads tokens takes of a sample.
struct TokenFormat {
  int64_t tokens = 0;
  int64_t planes = 1;       // the ids, then zeros: all tokens belong to the first segment
  int64_t vocabulary = 1;   // ids there are
  int64_t labels = 1;       // of a sample
  int64_t label_range = 1;  // numbers that a label may have
};

class SyntheticTokens : public Dataset {
 public:
  SyntheticTokens(const TokenFormat& format, int64_t samples, bool one_fixed_batch, uint64_t seed, Split split);

  int64_t size() const override { return samples_; }
  int64_t feature_bytes() const override { return format_.planes * format_.tokens * int64_t{sizeof(int32_t)}; }
  int64_t label_elements() const override { return format_.labels; }
  bool one_fixed_batch() const override { return one_fixed_batch_; }
  std::unique_ptr<Reader> reader() const override;

 private:
  class TokenReader;

  TokenFormat format_;
  int64_t samples_;
  bool one_fixed_batch_;
  uint64_t token_key_;
  uint64_t label_key_;
};

// As the job's model reads them.
TokenFormat token_format(const job::Model& model);

}  // namespace millrace::data
