#include <algorithm>
#include <vector>

#include "millrace/backend/reference/kernels.h"

namespace millrace::backend::reference {
namespace {

struct Geometry {
  int64_t samples, planes, plane, length, entries, width;
  std::string name;

  // visit(place in N x L, token)
  template <typename Visit>
  void each_place(const int32_t* tokens, const Visit& visit) const {
    for (int64_t n = 0; n < samples; ++n) {
      for (int64_t l = 0; l < length; ++l) {
        const int32_t token = tokens[(n * planes + plane) * length + l];
        if (token >= entries) fail_input("{}: token {}, the table has {} entries", name, token, entries);
        visit(n * length + l, token);
      }
    }
  }
};

template <typename T>
void forward(const Geometry& g, const T* table, const int32_t* tokens, T* y) {
  g.each_place(tokens, [&](int64_t place, int32_t token) {
    for (int64_t d = 0; d < g.width; ++d) y[place * g.width + d] = token < 0 ? T{0} : table[token * g.width + d];
  });
}

template <typename T>
void weight_grad(const Geometry& g, const T* dy, const int32_t* tokens, T* dtable) {
  std::vector<double> sums(static_cast<size_t>(g.entries * g.width), 0.0);
  g.each_place(tokens, [&](int64_t place, int32_t token) {
    if (token < 0) return;
    for (int64_t d = 0; d < g.width; ++d) sums[token * g.width + d] += dy[place * g.width + d];
  });
  std::transform(sums.begin(), sums.end(), dtable, [](double sum) { return static_cast<T>(sum); });
}

}  // namespace

Kernel prepare_embedding(const NodeView& view) {
  const bool forwards = view.node.pass == graph::Pass::Forward || view.node.pass == graph::Pass::Evaluate;
  if (!forwards && view.node.pass != graph::Pass::WeightGrad) refuse_pass(view);
  const Shape &table = forwards ? view.read(0) : view.write(0), &tokens_shape = view.read(1);
  const Geometry g{tokens_shape[0],
                   tokens_shape.rank() == 3 ? tokens_shape[1] : 1,
                   view.attrs<graph::EmbeddingAttrs>().plane,
                   tokens_shape.width(),
                   table[0],
                   table[1],
                   view.node.name};
  return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
    const T* first = at.read<T>(0);
    const auto* tokens = at.read<int32_t>(1);
    T* out = at.write<T>(0);
    if (forwards) return [=](const StepContext&) { forward(g, first, tokens, out); };
    return [=](const StepContext&) { weight_grad(g, first, tokens, out); };
  });
}

}  // namespace millrace::backend::reference
