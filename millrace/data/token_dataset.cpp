#include "millrace/data/token_dataset.h"

#include <algorithm>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/data/bad_sample.h"

namespace millrace::data {

class TokenDataset::TokenReader final : public Reader {
 public:
  explicit TokenReader(const TokenDataset& data) : data_(data), tokens_(static_cast<size_t>(data.length_) + 1) {}

  void fill(std::span<const int64_t> samples, int64_t /*epoch*/, std::byte* features, int32_t* labels) override {
    auto* ids = reinterpret_cast<int32_t*>(features);
    for (const int64_t sample : samples) {
      const bool usable = read(sample, labels != nullptr);
      if (ids) ids = usable ? put(0, ids) : std::fill_n(ids, data_.length_, kNoToken);
      if (labels) labels = usable ? put(1, labels) : std::fill_n(labels, data_.length_, kNoLabel);
    }
  }

 private:
  // All tokens are looked at, whoever asks: the verdict is the same for those who need only ids or only labels.
  bool read(int64_t sample, bool counts) {
    const auto& first = data_.first_sample_;
    const auto file = static_cast<size_t>(std::upper_bound(first.begin(), first.end(), sample) - first.begin() - 1);
    const int64_t position = (sample - first[file]) * data_.length_;
    data_.files_.read(file, position, tokens_);
    const auto bad = std::find_if(tokens_.begin(), tokens_.end(),
                                  [&](uint32_t token) { return int64_t{token} >= data_.vocabulary_; });
    if (bad == tokens_.end()) return true;
    const std::string reason =
        fmt::format("{}: token {} at position {}, and model.vocabulary is {}", data_.files_.path(file), *bad,
                    position + (bad - tokens_.begin()), data_.vocabulary_);
    if (!data_.skip_) fail_sample("{}; {}", reason, advice(*bad));
    if (counts) data_.skip_->add(reason);
    return false;
  }

  std::string advice(uint32_t token) const {
    constexpr uint32_t kTooLarge = 1'000'000;  // for any vocabulary: two tokens of 2 bytes, read as one
    if (data_.files_.token_bytes() == 4 && token >= kTooLarge) {
      return "write data.token_bytes: 2 if the file has such tokens, or data.on_error: skip";
    }
    return fmt::format("write model.vocabulary: {} or more, or data.on_error: skip", int64_t{token} + 1);
  }

  int32_t* put(int64_t from, int32_t* to) const {
    return std::transform(tokens_.begin() + from, tokens_.begin() + from + data_.length_, to,
                          [](uint32_t token) { return static_cast<int32_t>(token); });
  }

  const TokenDataset& data_;
  std::vector<uint32_t> tokens_;  // of one sample, and the one that follows
};

TokenDataset::TokenDataset(const std::string& path, int token_bytes, int length, int64_t vocabulary,
                           std::unique_ptr<SkipLog> skip)
    : files_(path, token_bytes), length_(length), vocabulary_(vocabulary), first_sample_{0}, skip_(std::move(skip)) {
  for (size_t file = 0; file < files_.num_files(); ++file) {
    const int64_t samples = token_samples(files_.tokens(file), length_);
    if (samples == 0) {
      const std::string reason = fmt::format("{}: {} tokens, and a sample of model.tokens {} needs {}",
                                             files_.path(file), files_.tokens(file), length_, length_ + 1);
      if (!skip_ || files_.num_files() == 1) {
        fail_sample("{}; write a smaller model.tokens, or name a longer file", reason);
      }
      skip_->add(reason);
    }
    first_sample_.push_back(first_sample_.back() + samples);
  }
  if (size() == 0) {
    fail_input("none of {} files is long enough; the first: {}", files_.num_files(), skip_->reasons().front());
  }
  if (skip_) skip_->end_opening();
}

std::unique_ptr<Reader> TokenDataset::reader() const { return std::make_unique<TokenReader>(*this); }

std::unique_ptr<Dataset> open_token_dataset(const job::Job& job, Split split) {
  return std::make_unique<TokenDataset>(
      split == Split::Train ? job.data.train : job.data.test, job.data.token_bytes, job.model.tokens,
      job::vocabulary_of(job.model), job.data.on_error == job::OnError::Skip ? std::make_unique<SkipLog>() : nullptr);
}

}  // namespace millrace::data
