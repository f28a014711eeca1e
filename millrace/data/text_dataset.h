// Sentences from a TSV file as tokens: model.tokens int32 ids for each sample, kNoToken where the sentence has ended,
// then as many segments for models that read them; and its label.
#pragma once

#include <memory>

#include "millrace/data/dataset.h"
#include "millrace/data/text/tsv.h"
#include "millrace/data/text/wordpiece.h"

namespace millrace::data {

class TextDataset : public Dataset {
 public:
  TextDataset(TsvFile file, WordPiece tokenizer, int max_tokens, int planes, std::unique_ptr<SkipLog> skip);

  int64_t size() const override { return static_cast<int64_t>(file_.rows.size()); }
  int64_t feature_bytes() const override { return planes_ * max_tokens_ * int64_t{sizeof(int32_t)}; }
  std::unique_ptr<Reader> reader() const override;
  const SkipLog* skipped() const override { return skip_.get(); }

 private:
  class TextReader;

  TsvFile file_;
  WordPiece tokenizer_;
  int max_tokens_;
  int planes_;  // 2: ids and segments
  std::unique_ptr<SkipLog> skip_;
};

// The job's vocabulary, refused where the model has no room for it.
WordPiece load_tokenizer(const job::Job& job);

std::unique_ptr<Dataset> open_text_dataset(const job::Job& job, Split split);

}  // namespace millrace::data
