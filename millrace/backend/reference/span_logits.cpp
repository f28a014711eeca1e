#include "millrace/backend/reference/kernels.h"

namespace millrace::backend::reference {
namespace {

struct Geometry {
  int64_t samples, length, spans, planes;

  // visit(element of N x L x K, element of N x K x L, whether there is a token)
  template <typename Visit>
  void each(const int32_t* tokens, const Visit& visit) const {
    for (int64_t n = 0; n < samples; ++n) {
      for (int64_t l = 0; l < length; ++l) {
        for (int64_t k = 0; k < spans; ++k) {
          visit((n * length + l) * spans + k, (n * spans + k) * length + l, tokens[n * planes * length + l] >= 0);
        }
      }
    }
  }
};

}  // namespace

Kernel prepare_span_logits(const NodeView& view) {
  if (view.node.pass == graph::Pass::WeightGrad || view.node.pass == graph::Pass::Update) refuse_pass(view);
  const bool backward = view.node.pass == graph::Pass::InputGrad;
  const Shape &x_shape = backward ? view.write(0) : view.read(0), &tokens_shape = view.read(1);
  const Geometry g{x_shape[0], x_shape[1], x_shape[2], tokens_shape.rank() == 3 ? tokens_shape[1] : 1};
  return plain_kernel(view, [=]<typename T>(const Bindings& at) -> Task {
    const T* from = at.read<T>(0);
    const auto* tokens = at.read<int32_t>(1);
    T* to = at.write<T>(0);
    if (backward) {
      return [=](const StepContext&) {
        g.each(tokens, [&](int64_t x, int64_t y, bool is_token) { to[x] = is_token ? from[y] : T{0}; });
      };
    }
    return [=](const StepContext&) {
      g.each(tokens, [&](int64_t x, int64_t y, bool is_token) { to[y] = is_token ? from[x] : T{-1e4}; });
    };
  });
}

}  // namespace millrace::backend::reference
