// The table's row that each token names. Tokens below zero are none.
#include <omp.h>

#include <algorithm>

#include "millrace/backend/cpu/kernels.h"
#include "millrace/base/error.h"

namespace millrace::backend::cpu {
namespace {

struct Geometry {
  int64_t samples, planes, plane, length, entries, width;

  int64_t places() const { return samples * length; }
  int32_t token(const int32_t* tokens, int64_t place) const {
    return tokens[(place / length * planes + plane) * length + place % length];
  }
};

void check_tokens(const Geometry& g, const int32_t* tokens, const std::string& name) {
  for (int64_t place = 0; place < g.places(); ++place) {
    const int32_t token = g.token(tokens, place);
    if (token >= g.entries) fail_input("{}: token {}, the table has {} entries", name, token, g.entries);
  }
}

void forward(const Geometry& g, const float* table, const int32_t* tokens, float* y) {
#pragma omp parallel for schedule(static)
  for (int64_t place = 0; place < g.places(); ++place) {
    const int32_t token = g.token(tokens, place);
    if (token < 0) {
      std::fill_n(y + place * g.width, g.width, 0.0f);
    } else {
      std::copy_n(table + token * g.width, g.width, y + place * g.width);
    }
  }
}

// A thread has some of the columns and goes through all tokens: each sum has one order, and all threads the same work
// however often a token comes. Their columns are whole cache lines.
void weight_grad(const Geometry& g, const float* dy, const int32_t* tokens, float* dtable) {
  constexpr int64_t kLine = 16;
  const int64_t lines = (g.width + kLine - 1) / kLine;
#pragma omp parallel
  {
#pragma omp for schedule(static)
    for (int64_t entry = 0; entry < g.entries; ++entry) std::fill_n(dtable + entry * g.width, g.width, 0.0f);
    const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
    const int64_t first = lines * thread / threads * kLine;
    const int64_t last = std::min(lines * (thread + 1) / threads * kLine, g.width);
    for (int64_t place = 0; place < g.places() && first < last; ++place) {
      const int32_t token = g.token(tokens, place);
      if (token < 0) continue;
      const float* from = dy + place * g.width;
      float* to = dtable + token * g.width;
#pragma omp simd
      for (int64_t d = first; d < last; ++d) to[d] += from[d];
    }
  }
}

}  // namespace

Kernel prepare_embedding(const NodeView& view) {
  const bool forwards = view.node.pass != graph::Pass::WeightGrad;
  const Shape &table_shape = forwards ? view.read(0) : view.write(0), &tokens_shape = view.read(1);
  const Geometry g{tokens_shape[0],
                   tokens_shape.rank() == 3 ? tokens_shape[1] : 1,
                   view.attrs<graph::EmbeddingAttrs>().plane,
                   tokens_shape.width(),
                   table_shape[0],
                   table_shape[1]};
  return {"loop", 0, [=, name = view.node.name](const Bindings& bind) -> Task {
            const auto* first = bind.read<float>(0);
            const auto* tokens = bind.read<int32_t>(1);
            auto* out = bind.write<float>(0);
            return [=](const StepContext&) {
              check_tokens(g, tokens, name);
              forwards ? forward(g, first, tokens, out) : weight_grad(g, first, tokens, out);
            };
          }};
}

}  // namespace millrace::backend::cpu
