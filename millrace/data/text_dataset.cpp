#include "millrace/data/text_dataset.h"

#include <algorithm>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/data/bad_sample.h"
#include "millrace/data/text/encoding.h"

namespace millrace::data {

class TextDataset::TextReader final : public Reader {
 public:
  explicit TextReader(const TextDataset& data) : data_(data), segments_(static_cast<size_t>(data.max_tokens_)) {}

  void fill(std::span<const int64_t> samples, int64_t /*epoch*/, std::byte* features, int32_t* labels) override {
    const auto length = static_cast<size_t>(data_.max_tokens_);
    auto* ids = reinterpret_cast<int32_t*>(features);
    for (const int64_t sample : samples) {
      if (ids) {
        tokens_.clear();
        data_.tokenizer_.tokenize(data_.file_.sentence(static_cast<size_t>(sample)), tokens_);
        tokens_.resize(std::min(tokens_.size(), length - 2));  // beside [CLS] and [SEP]
        const int32_t used =
            write_sequence(data_.tokenizer_.special(), tokens_, {}, false, std::span(ids, length), segments_);
        std::fill(ids + used, ids + length, kNoToken);
        if (data_.planes_ == 2) std::copy(segments_.begin(), segments_.end(), ids + length);
        ids += static_cast<size_t>(data_.planes_) * length;
      }
      if (labels) *labels++ = data_.file_.rows[static_cast<size_t>(sample)].label;
    }
  }

 private:
  const TextDataset& data_;
  std::vector<Token> tokens_;
  std::vector<int32_t> segments_;
};

TextDataset::TextDataset(TsvFile file, WordPiece tokenizer, int max_tokens, int planes, std::unique_ptr<SkipLog> skip)
    : file_(std::move(file)),
      tokenizer_(std::move(tokenizer)),
      max_tokens_(max_tokens),
      planes_(planes),
      skip_(std::move(skip)) {
  if (skip_) skip_->end_opening();
}

std::unique_ptr<Reader> TextDataset::reader() const { return std::make_unique<TextReader>(*this); }

WordPiece load_tokenizer(const job::Job& job) {
  WordPiece tokenizer = WordPiece::load(job.data.vocab, job.data.lower_case);
  const int room = job::vocabulary_of(job.model);
  if (tokenizer.vocabulary().size() > room) {
    fail_input("{} has {} tokens and model.vocabulary is {}; write model.vocabulary: {}", job.data.vocab,
               tokenizer.vocabulary().size(), room, tokenizer.vocabulary().size());
  }
  return tokenizer;
}

std::unique_ptr<Dataset> open_text_dataset(const job::Job& job, Split split) {
  auto skip = job.data.on_error == job::OnError::Skip ? std::make_unique<SkipLog>() : nullptr;
  const std::string& path = split == Split::Train ? job.data.train : job.data.test;
  TsvFile file = read_tsv(path, skip.get());
  std::erase_if(file.rows, [&](const TsvRow& row) {
    if (row.label < job.model.classes) return false;
    const std::string reason =
        fmt::format("{}:{}: label {}, the model has classes 0 to {}", path, row.line, row.label, job.model.classes - 1);
    if (!skip) fail_sample("{}; write model.classes: {}, or data.on_error: skip", reason, row.label + 1);
    skip->add(reason);
    return true;
  });
  if (file.rows.empty()) {
    fail_input("{}: no row is left, {} were skipped; the first: {}", path, skip->count(), skip->reasons().front());
  }
  return std::make_unique<TextDataset>(std::move(file), load_tokenizer(job), job.model.tokens,
                                       job::token_planes(job.model), std::move(skip));
}

}  // namespace millrace::data
