// Exact match and F1 of answers, as the official evaluation script of SQuAD 1.1 computes them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "millrace/data/text/squad.h"

namespace millrace::data {

// Lower case, without ASCII punctuation, without the words a, an and the, single spaces.
std::string normalize_answer(std::string_view answer);

bool is_exact_match(std::string_view prediction, std::string_view truth);

// Harmonic mean of precision and recall over the words in common; 0 where there are none, also of two empty answers.
double answer_f1(std::string_view prediction, std::string_view truth);

class SquadMetric {
 public:
  // The best over the answers counts, for each of the two on its own. An unanswered question is an empty prediction.
  void add(std::string_view prediction, std::span<const SquadAnswer> truths);

  int64_t count() const { return count_; }
  // In percent of the questions added; 0 before the first.
  double exact_match() const { return percent(exact_); }
  double f1() const { return percent(f1_); }

 private:
  double percent(double sum) const { return count_ == 0 ? 0 : 100.0 * sum / static_cast<double>(count_); }

  int64_t count_ = 0;
  double exact_ = 0;
  double f1_ = 0;
};

}  // namespace millrace::data
