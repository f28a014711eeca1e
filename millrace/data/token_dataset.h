// Language modelling: pieces of model.tokens tokens from files of them, one behind the other, and for each token as its
// label the one that follows. No sample runs over a file's end.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "millrace/data/dataset.h"
#include "millrace/data/files/token_files.h"

namespace millrace::data {

// Samples of `length` tokens in a file of so many; the last one's labels need a token more.
constexpr int64_t token_samples(int64_t tokens, int64_t length) { return tokens > 0 ? (tokens - 1) / length : 0; }

class TokenDataset : public Dataset {
 public:
  // `skip` gets files of a folder that are too short for a sample, and samples that are skipped while reading; null:
  // errors stop.
  TokenDataset(const std::string& path, int token_bytes, int length, int64_t vocabulary, std::unique_ptr<SkipLog> skip);

  int64_t size() const override { return first_sample_.back(); }
  int64_t feature_bytes() const override { return length_ * int64_t{sizeof(int32_t)}; }
  int64_t label_elements() const override { return length_; }
  std::unique_ptr<Reader> reader() const override;
  const SkipLog* skipped() const override { return skip_.get(); }

 private:
  class TokenReader;

  TokenFiles files_;
  int64_t length_;
  int64_t vocabulary_;
  std::vector<int64_t> first_sample_;  // of each file, and the number of all
  std::unique_ptr<SkipLog> skip_;
};

std::unique_ptr<Dataset> open_token_dataset(const job::Job& job, Split split);

}  // namespace millrace::data
