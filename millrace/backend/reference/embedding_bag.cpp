#include <algorithm>
#include <vector>

#include "millrace/backend/reference/kernels.h"

namespace millrace::backend::reference {
namespace {

struct Geometry {
  int64_t rows, tokens, entries, width;
  std::string name;

  // visit(token, 1 / number of tokens of the row)
  template <typename Visit>
  void each_token(const int32_t* tokens_of_row, const Visit& visit) const {
    int64_t count = 0;
    for (int64_t t = 0; t < tokens; ++t) count += tokens_of_row[t] >= 0;
    for (int64_t t = 0; t < tokens; ++t) {
      const int32_t token = tokens_of_row[t];
      if (token < 0) continue;
      if (token >= entries) fail_input("{}: token {}, the table has {} entries", name, token, entries);
      visit(token, 1.0 / static_cast<double>(count));
    }
  }
};

template <typename T>
void forward(const Geometry& g, const T* table, const int32_t* tokens, T* y) {
  std::vector<double> sum(static_cast<size_t>(g.width));
  for (int64_t n = 0; n < g.rows; ++n) {
    std::fill(sum.begin(), sum.end(), 0.0);
    g.each_token(tokens + n * g.tokens, [&](int32_t token, double share) {
      for (int64_t d = 0; d < g.width; ++d) sum[d] += share * table[token * g.width + d];
    });
    for (int64_t d = 0; d < g.width; ++d) y[n * g.width + d] = static_cast<T>(sum[d]);
  }
}

template <typename T>
void weight_grad(const Geometry& g, const T* dy, const int32_t* tokens, T* dtable) {
  std::vector<double> sums(static_cast<size_t>(g.entries * g.width), 0.0);
  for (int64_t n = 0; n < g.rows; ++n) {
    g.each_token(tokens + n * g.tokens, [&](int32_t token, double share) {
      for (int64_t d = 0; d < g.width; ++d) sums[token * g.width + d] += share * dy[n * g.width + d];
    });
  }
  for (size_t i = 0; i < sums.size(); ++i) dtable[i] = static_cast<T>(sums[i]);
}

}  // namespace

Kernel prepare_embedding_bag(const NodeView& view) {
  const bool forwards = view.node.pass == graph::Pass::Forward || view.node.pass == graph::Pass::Evaluate;
  if (!forwards && view.node.pass != graph::Pass::WeightGrad) refuse_pass(view);
  const Shape& table = forwards ? view.read(0) : view.write(0);
  const Geometry g{view.read(1)[0], view.read(1)[1], table[0], table[1], view.node.name};
  return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
    const T* first = at.read<T>(0);
    const auto* tokens = at.read<int32_t>(1);
    T* out = at.write<T>(0);
    if (forwards) return [=](const StepContext&) { forward(g, first, tokens, out); };
    return [=](const StepContext&) { weight_grad(g, first, tokens, out); };
  });
}

}  // namespace millrace::backend::reference
