#include "millrace/data/synthetic_tokens.h"

#include <algorithm>

namespace millrace::data {
namespace {

void fill_random(uint64_t key, int64_t sample, int64_t range, std::span<int32_t> numbers) {
  const RandomStream stream(key, 0, static_cast<uint64_t>(sample));
  constexpr size_t kWords = 4;
  for (size_t i = 0; i < numbers.size(); i += kWords) {
    const RandomBlock words = stream.at(i / kWords);
    for (size_t j = i; j < std::min(i + kWords, numbers.size()); ++j) {
      numbers[j] = static_cast<int32_t>(words[j - i] % static_cast<uint32_t>(range));
    }
  }
}

}  // namespace

TokenFormat token_format(const job::Model& model) {
  TokenFormat format{model.tokens, job::token_planes(model), job::vocabulary_of(model), 1, model.classes};
  if (job::is_gpt(model)) {
    format.labels = model.tokens;
    format.label_range = format.vocabulary;
  } else if (model.head == job::Head::Span) {
    format.labels = 2;
    format.label_range = model.tokens;
  }
  return format;
}

class SyntheticTokens::TokenReader : public Reader {
 public:
  explicit TokenReader(const SyntheticTokens& set) : set_(set) {}

  void fill(std::span<const int64_t> samples, int64_t /*epoch*/, std::byte* features, int32_t* labels) override {
    const TokenFormat& format = set_.format_;
    auto* tokens = reinterpret_cast<int32_t*>(features);
    for (const int64_t sample : samples) {
      if (tokens) {
        const auto ids = static_cast<size_t>(format.tokens);
        fill_random(set_.token_key_, sample, format.vocabulary, {tokens, ids});
        std::fill(tokens + format.tokens, tokens + format.planes * format.tokens, 0);
        tokens += format.planes * format.tokens;
      }
      if (labels) {
        fill_random(set_.label_key_, sample, format.label_range, {labels, static_cast<size_t>(format.labels)});
        labels += format.labels;
      }
    }
  }

 private:
  const SyntheticTokens& set_;
};

SyntheticTokens::SyntheticTokens(const TokenFormat& format, int64_t samples, bool one_fixed_batch, uint64_t seed,
                                 Split split)
    : format_(format),
      samples_(samples),
      one_fixed_batch_(one_fixed_batch),
      token_key_(sample_key(seed, split, "synthetic.tokens")),
      label_key_(sample_key(seed, split, "synthetic.label")) {}

std::unique_ptr<Reader> SyntheticTokens::reader() const { return std::make_unique<TokenReader>(*this); }

}  // namespace millrace::data
