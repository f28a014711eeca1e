#include "millrace/data/squad_dataset.h"

#include <algorithm>
#include <utility>

#include "millrace/data/squad_scorer.h"
#include "millrace/data/text_dataset.h"

namespace millrace::data {

class SquadDataset::SquadReader final : public Reader {
 public:
  explicit SquadReader(const SquadDataset& data) : data_(data) {}

  void fill(std::span<const int64_t> samples, int64_t /*epoch*/, std::byte* features, int32_t* labels) override {
    const auto length = static_cast<size_t>(data_.windows_.options().max_tokens);
    auto* ids = reinterpret_cast<int32_t*>(features);
    for (const int64_t sample : samples) {
      const SquadWindow& window = data_.windows_.windows()[static_cast<size_t>(sample)];
      if (ids) {
        data_.windows_.fill(window, std::span(ids, length), std::span(ids + length, length));
        std::fill(ids + window.num_tokens(), ids + length, kNoToken);
        ids += 2 * length;
      }
      if (labels) {
        *labels++ = window.start;
        *labels++ = window.end;
      }
    }
  }

 private:
  const SquadDataset& data_;
};

SquadDataset::SquadDataset(SquadFile file, WordPiece tokenizer, const SquadWindowOptions& options, int32_t max_answer,
                           std::unique_ptr<SkipLog> skip)
    : file_(std::move(file)),
      tokenizer_(std::move(tokenizer)),
      windows_(file_, tokenizer_, options),
      max_answer_(max_answer),
      skip_(std::move(skip)) {
  if (skip_) skip_->end_opening();
}

std::unique_ptr<Reader> SquadDataset::reader() const { return std::make_unique<SquadReader>(*this); }

std::unique_ptr<Scorer> SquadDataset::scorer() const {
  return std::make_unique<SquadScorer>(file_, windows_, max_answer_);
}

std::unique_ptr<Dataset> open_squad_dataset(const job::Job& job, Split split) {
  auto skip = job.data.on_error == job::OnError::Skip ? std::make_unique<SkipLog>() : nullptr;
  SquadFile file = read_squad(split == Split::Train ? job.data.train : job.data.test, skip.get());
  const SquadWindowOptions options{
      .max_tokens = job.model.tokens, .doc_stride = job.data.doc_stride, .max_question_tokens = job.data.max_question};
  return std::make_unique<SquadDataset>(std::move(file), load_tokenizer(job), options, job.data.max_answer,
                                        std::move(skip));
}

}  // namespace millrace::data
