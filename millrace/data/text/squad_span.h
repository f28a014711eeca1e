// The answer that a model gives in one window: which first and which last token together have the largest logits.
#pragma once

#include <cstdint>
#include <span>

namespace millrace::data {

struct AnswerSpan {
  int32_t start = 0, end = 0;  // tokens of the window, both included
  float score = 0;             // the sum of their logits
  bool found = false;
};

// As Hugging Face's postprocess_qa_predictions: of the 20 largest starts and the 20 largest ends of the window, those
// of the context's tokens [context_at, context_at + num_context), not the wrong way round and at most `max_answer`
// long; none may remain. `starts` and `ends` are the logits of the window's tokens, without padding. Of equals the
// first counts; NaN never does.
AnswerSpan best_span(std::span<const float> starts, std::span<const float> ends, int32_t context_at,
                     int32_t num_context, int32_t max_answer);

}  // namespace millrace::data
