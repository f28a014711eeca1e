// Softmax attention, one query of one head at a time. A key that a query does not see has no weight; a query that sees
// no key makes zeros and saves 0.
#include <cmath>
#include <optional>
#include <vector>

#include "millrace/backend/dropout_mask.h"
#include "millrace/backend/reference/kernels.h"

namespace millrace::backend::reference {
namespace {

struct Geometry {
  int64_t rows, length, heads, width;  // width: features of one head
  int64_t planes;                      // of the tokens; the first counts
  bool causal;
  double scale;
  std::optional<DropoutMask> mask;

  int64_t features() const { return heads * width; }
  // Of the queries of head h of a token, in qkv; keys and values come `features` and twice that behind.
  int64_t query(int64_t n, int64_t i, int64_t h) const { return (n * length + i) * 3 * features() + h * width; }
  int64_t output(int64_t n, int64_t i, int64_t h) const { return (n * length + i) * features() + h * width; }
  int64_t saved(int64_t n, int64_t i, int64_t h) const { return (n * heads + h) * length + i; }

  bool sees(const int32_t* tokens, int64_t n, int64_t i, int64_t j) const {
    return !(causal && j > i) && !(tokens && tokens[n * planes * length + j] < 0);
  }

  // What dropout multiplies weight (i, j) of head h with.
  double kept(const std::optional<RandomStream>& random, int64_t h, int64_t i, int64_t j) const {
    if (!random) return 1;
    const int64_t e = (h * length + i) * length + j;
    return mask->keeps(random->at(e / 4)[e % 4]) ? mask->scale() : 0;
  }
  std::optional<RandomStream> random(const StepContext& context, int64_t n) const {
    return mask ? std::optional(mask->row(context, n)) : std::nullopt;
  }
};

template <typename T>
double dot(const T* a, const T* b, int64_t width) {
  double sum = 0;
  for (int64_t d = 0; d < width; ++d) sum += static_cast<double>(a[d]) * b[d];
  return sum;
}

// visit(n, h, i), for all queries.
template <typename Visit>
void each_query(const Geometry& g, const Visit& visit) {
  for (int64_t n = 0; n < g.rows; ++n) {
    for (int64_t h = 0; h < g.heads; ++h) {
      for (int64_t i = 0; i < g.length; ++i) visit(n, h, i);
    }
  }
}

template <typename T>
void forward(const Geometry& g, const StepContext& context, const T* qkv, const int32_t* tokens, T* y, T* saved) {
  std::vector<double> scores(static_cast<size_t>(g.length)), sums(static_cast<size_t>(g.width));
  each_query(g, [&](int64_t n, int64_t h, int64_t i) {
    const auto random = g.random(context, n);
    double largest = -INFINITY;
    for (int64_t j = 0; j < g.length; ++j) {
      const T *query = qkv + g.query(n, i, h), *key = qkv + g.query(n, j, h) + g.features();
      scores[j] = g.sees(tokens, n, i, j) ? g.scale * dot(query, key, g.width) : -INFINITY;
      // Keeps NaN, so that a run that has diverged shows it.
      if (!(scores[j] <= largest)) largest = scores[j];
    }
    double total = 0;
    sums.assign(sums.size(), 0.0);
    if (largest != -INFINITY) {
      for (int64_t j = 0; j < g.length; ++j) total += std::exp(scores[j] - largest);
      for (int64_t j = 0; j < g.length; ++j) {
        const double weight = std::exp(scores[j] - largest) / total * g.kept(random, h, i, j);
        const T* value = qkv + g.query(n, j, h) + 2 * g.features();
        for (int64_t d = 0; d < g.width; ++d) sums[d] += weight * value[d];
      }
    }
    for (int64_t d = 0; d < g.width; ++d) y[g.output(n, i, h) + d] = static_cast<T>(sums[d]);
    if (saved) saved[g.saved(n, i, h)] = static_cast<T>(largest == -INFINITY ? 0 : largest + std::log(total));
  });
}

// With weight p(i, j), what dropout makes of it k p, and dp = dy v: the sum over j of k p dp is dy y, so that the
// softmax's gradient needs no sum over keys.
template <typename T>
void input_grad(const Geometry& g, const StepContext& context, const T* dy, const T* qkv, const T* y, const T* saved,
                const int32_t* tokens, T* dqkv) {
  std::vector<double> sums(static_cast<size_t>(g.rows * g.length * 3 * g.features()), 0.0);
  each_query(g, [&](int64_t n, int64_t h, int64_t i) {
    const auto random = g.random(context, n);
    const int64_t query = g.query(n, i, h), out = g.output(n, i, h);
    const double along = dot(dy + out, y + out, g.width);
    for (int64_t j = 0; j < g.length; ++j) {
      if (!g.sees(tokens, n, i, j)) continue;
      const int64_t key = g.query(n, j, h) + g.features(), value = key + g.features();
      const double weight = std::exp(g.scale * dot(qkv + query, qkv + key, g.width) - saved[g.saved(n, i, h)]);
      const double kept = g.kept(random, h, i, j);
      const double dscore = weight * (kept * dot(dy + out, qkv + value, g.width) - along) * g.scale;
      for (int64_t d = 0; d < g.width; ++d) {
        sums[query + d] += dscore * qkv[key + d];
        sums[key + d] += dscore * qkv[query + d];
        sums[value + d] += weight * kept * dy[out + d];
      }
    }
  });
  for (size_t e = 0; e < sums.size(); ++e) dqkv[e] = static_cast<T>(sums[e]);
}

}  // namespace

Kernel prepare_attention(const NodeView& view) {
  const bool forwards = view.node.pass == graph::Pass::Forward || view.node.pass == graph::Pass::Evaluate;
  if (!forwards && view.node.pass != graph::Pass::InputGrad) refuse_pass(view);
  const auto& attrs = view.attrs<graph::AttentionAttrs>();
  const Shape& qkv_shape = view.read(forwards ? 0 : 1);
  const int tokens_at = forwards ? 1 : 4;
  const bool masked = view.num_reads() > tokens_at, saves = view.num_writes() > 1;
  Geometry g{qkv_shape[0], qkv_shape[1], attrs.heads, qkv_shape[2] / (3 * attrs.heads), 1, attrs.causal, 1, {}};
  g.scale = 1 / std::sqrt(static_cast<double>(g.width));
  if (masked && view.read(tokens_at).rank() == 3) g.planes = view.read(tokens_at)[1];
  if (attrs.dropout > 0 && view.node.pass != graph::Pass::Evaluate) g.mask.emplace(view.node.name, attrs.dropout);
  return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
    const int32_t* tokens = masked ? at.read<int32_t>(tokens_at) : nullptr;
    if (forwards) {
      const T* qkv = at.read<T>(0);
      T *y = at.write<T>(0), *saved = saves ? at.write<T>(1) : nullptr;
      return [=](const StepContext& context) { forward(g, context, qkv, tokens, y, saved); };
    }
    const T *dy = at.read<T>(0), *qkv = at.read<T>(1), *y = at.read<T>(2), *saved = at.read<T>(3);
    T* dqkv = at.write<T>(0);
    return [=](const StepContext& context) { input_grad(g, context, dy, qkv, y, saved, tokens, dqkv); };
  });
}

}  // namespace millrace::backend::reference
