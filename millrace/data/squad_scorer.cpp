#include "millrace/data/squad_scorer.h"

#include <cassert>
#include <nlohmann/json.hpp>

#include "millrace/data/text/squad_metric.h"
#include "millrace/data/text/squad_span.h"

namespace millrace::data {

SquadScorer::SquadScorer(const SquadFile& file, const SquadWindows& windows, int32_t max_answer)
    : file_(file), windows_(windows), max_answer_(max_answer) {}

void SquadScorer::score(int64_t sample, std::span<const float> logits, std::span<float> numbers) const {
  const auto length = static_cast<size_t>(windows_.options().max_tokens);
  assert(logits.size() == 2 * length && numbers.size() == kNumbers);
  const SquadWindow& window = windows_.windows()[static_cast<size_t>(sample)];
  const auto used = static_cast<size_t>(window.num_tokens());
  const AnswerSpan best =
      best_span(logits.first(used), logits.subspan(length, used), window.context_at, window.num_context, max_answer_);
  numbers[kStart] = static_cast<float>(best.start);
  numbers[kEnd] = static_cast<float>(best.end);
  numbers[kScore] = best.score;
  numbers[kFound] = best.found ? 1 : 0;
}

std::vector<std::string_view> SquadScorer::answers(std::span<const float> numbers) const {
  assert(numbers.size() == windows_.windows().size() * kNumbers);
  std::vector<std::string_view> texts(file_.questions.size());
  std::vector<const float*> best(file_.questions.size(), nullptr);
  for (size_t i = 0; i < windows_.windows().size(); ++i) {
    const SquadWindow& window = windows_.windows()[i];
    const float* one = numbers.data() + i * kNumbers;
    const float*& known = best[window.question];
    if (one[kFound] == 0 || (known && one[kScore] <= known[kScore])) continue;
    known = one;
    texts[window.question] =
        windows_.span_text(window, static_cast<int64_t>(one[kStart]), static_cast<int64_t>(one[kEnd]));
  }
  return texts;
}

std::vector<double> SquadScorer::figures(std::span<const float> numbers) const {
  const std::vector<std::string_view> texts = answers(numbers);
  SquadMetric metric;
  for (size_t i = 0; i < texts.size(); ++i) metric.add(texts[i], file_.questions[i].answers);
  return {metric.exact_match(), metric.f1()};
}

std::string SquadScorer::predictions_json(std::span<const float> numbers) const {
  const std::vector<std::string_view> texts = answers(numbers);
  nlohmann::ordered_json record = nlohmann::ordered_json::object();
  for (size_t i = 0; i < texts.size(); ++i) record[file_.questions[i].id] = texts[i];
  return record.dump(2) + "\n";
}

}  // namespace millrace::data
