#include "millrace/data/text/squad_span.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace millrace::data {
namespace {

constexpr size_t kBest = 20;  // run_qa's n_best_size

// Positions of the largest logits, largest first, less those outside of the context.
std::vector<int32_t> best_of(std::span<const float> logits, int32_t context_at, int32_t num_context) {
  std::vector<int32_t> order;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isnan(logits[i])) order.push_back(static_cast<int32_t>(i));
  }
  const auto logit = [&](int32_t at) { return logits[static_cast<size_t>(at)]; };
  const size_t kept = std::min(kBest, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<int64_t>(kept), order.end(),
                    [&](int32_t a, int32_t b) { return logit(a) != logit(b) ? logit(a) > logit(b) : a < b; });
  order.resize(kept);
  std::erase_if(order, [&](int32_t at) { return at < context_at || at >= context_at + num_context; });
  return order;
}

}  // namespace

AnswerSpan best_span(std::span<const float> starts, std::span<const float> ends, int32_t context_at,
                     int32_t num_context, int32_t max_answer) {
  const std::vector<int32_t> last_tokens = best_of(ends, context_at, num_context);
  AnswerSpan best;
  for (const int32_t start : best_of(starts, context_at, num_context)) {
    for (const int32_t end : last_tokens) {
      if (end < start || end - start >= max_answer) continue;
      const float score = starts[static_cast<size_t>(start)] + ends[static_cast<size_t>(end)];
      if (std::isnan(score) || (best.found && score <= best.score)) continue;
      best = {start, end, score, true};
    }
  }
  return best;
}

}  // namespace millrace::data
