// Questions about paragraphs: a sample is a window of model.tokens with the question and a piece of its paragraph, ids
// and then segments, kNoToken where the window has ended. Its labels are the answer's first and last token, both 0 -
// [CLS] - where the window does not have all of it.
#pragma once

#include <memory>

#include "millrace/data/dataset.h"
#include "millrace/data/text/squad_windows.h"

namespace millrace::data {

class SquadDataset : public Dataset {
 public:
  SquadDataset(SquadFile file, WordPiece tokenizer, const SquadWindowOptions& options, int32_t max_answer,
               std::unique_ptr<SkipLog> skip);

  int64_t size() const override { return static_cast<int64_t>(windows_.windows().size()); }
  int64_t feature_bytes() const override { return 2 * windows_.options().max_tokens * int64_t{sizeof(int32_t)}; }
  int64_t label_elements() const override { return 2; }
  std::unique_ptr<Reader> reader() const override;
  std::unique_ptr<Scorer> scorer() const override;
  const SkipLog* skipped() const override { return skip_.get(); }

 private:
  class SquadReader;

  SquadFile file_;
  WordPiece tokenizer_;
  SquadWindows windows_;  // of the two above
  int32_t max_answer_;
  std::unique_ptr<SkipLog> skip_;
};

std::unique_ptr<Dataset> open_squad_dataset(const job::Job& job, Split split);

}  // namespace millrace::data
