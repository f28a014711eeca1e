// The mean of the table's rows that a sample's tokens name. Tokens below zero are none.
#include <algorithm>

#include "millrace/backend/cpu/kernels.h"
#include "millrace/base/error.h"

namespace millrace::backend::cpu {
namespace {

struct Geometry {
  int64_t rows, tokens, entries, width;

  float share(const int32_t* row) const {
    const auto count = std::count_if(row, row + tokens, [](int32_t token) { return token >= 0; });
    return count == 0 ? 0.0f : 1.0f / static_cast<float>(count);
  }
};

void check_tokens(const Geometry& g, const int32_t* tokens, const std::string& name) {
  const int32_t largest = *std::max_element(tokens, tokens + g.rows * g.tokens);
  if (largest >= g.entries) fail_input("{}: token {}, the table has {} entries", name, largest, g.entries);
}

}  // namespace

Kernel prepare_embedding_bag(const NodeView& view) {
  const bool forward = view.node.pass != graph::Pass::WeightGrad;
  const Shape& table_shape = forward ? view.read(0) : view.write(0);
  const Geometry g{view.read(1)[0], view.read(1)[1], table_shape[0], table_shape[1]};
  if (forward) {
    return {"loop", 0, [=, name = view.node.name](const Bindings& bind) -> Task {
              const auto* table = bind.read<float>(0);
              const auto* tokens = bind.read<int32_t>(1);
              auto* y = bind.write<float>(0);
              return [=](const StepContext&) {
                check_tokens(g, tokens, name);
#pragma omp parallel for schedule(static)
                for (int64_t n = 0; n < g.rows; ++n) {
                  const int32_t* row = tokens + n * g.tokens;
                  float* out = y + n * g.width;
                  std::fill(out, out + g.width, 0.0f);
                  for (int64_t t = 0; t < g.tokens; ++t) {
                    if (row[t] < 0) continue;
                    const float* entry = table + row[t] * g.width;
                    for (int64_t d = 0; d < g.width; ++d) out[d] += entry[d];
                  }
                  const float share = g.share(row);
                  for (int64_t d = 0; d < g.width; ++d) out[d] *= share;
                }
              };
            }};
  }
  return {"loop", 0, [=](const Bindings& bind) -> Task {
            const auto* dy = bind.read<float>(0);
            const auto* tokens = bind.read<int32_t>(1);
            auto* dtable = bind.write<float>(0);
            // A thread has some of the columns and goes through all tokens: each sum has one order.
            constexpr int64_t kColumns = 16;
            return [=](const StepContext&) {
#pragma omp parallel for schedule(static)
              for (int64_t first = 0; first < g.width; first += kColumns) {
                const int64_t last = std::min(first + kColumns, g.width);
                for (int64_t e = 0; e < g.entries; ++e) {
                  std::fill(dtable + e * g.width + first, dtable + e * g.width + last, 0.0f);
                }
                for (int64_t n = 0; n < g.rows; ++n) {
                  const int32_t* row = tokens + n * g.tokens;
                  const float share = g.share(row);
                  for (int64_t t = 0; t < g.tokens; ++t) {
                    if (row[t] < 0) continue;
                    for (int64_t d = first; d < last; ++d) dtable[row[t] * g.width + d] += share * dy[n * g.width + d];
                  }
                }
              }
            };
          }};
}

}  // namespace millrace::backend::cpu
