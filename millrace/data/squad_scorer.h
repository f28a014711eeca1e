// Exact match and F1 of the answers that a model gives. Of each window its best span is kept; the best of a question's
// windows is its answer, cut from the context.
#pragma once

#include "millrace/data/scorer.h"
#include "millrace/data/text/squad_windows.h"

namespace millrace::data {

class SquadScorer final : public Scorer {
 public:
  // Both must outlive this. An answer has at most `max_answer` tokens.
  SquadScorer(const SquadFile& file, const SquadWindows& windows, int32_t max_answer);

  int numbers_per_sample() const override { return kNumbers; }

  // `logits`: of starts for each of the window's max_tokens, then of ends.
  void score(int64_t sample, std::span<const float> logits, std::span<float> numbers) const override;

  // In percent of the questions.
  std::vector<std::string> names() const override { return {"exact_match", "f1"}; }
  std::vector<double> figures(std::span<const float> numbers) const override;

  // {id: answer}, as the official evaluation script reads it; "" where no answer was found.
  std::string predictions_json(std::span<const float> numbers) const override;

 private:
  enum Number { kStart, kEnd, kScore, kFound, kNumbers };

  std::vector<std::string_view> answers(std::span<const float> numbers) const;  // one for each question

  const SquadFile& file_;
  const SquadWindows& windows_;
  int32_t max_answer_;
};

}  // namespace millrace::data
