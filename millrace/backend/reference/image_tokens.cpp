#include "millrace/backend/reference/kernels.h"

namespace millrace::backend::reference {
namespace {

struct Geometry {
  int64_t samples, pixels, width;

  explicit Geometry(const Shape& tokens) : samples(tokens[0]), pixels(tokens[1] - 1), width(tokens[2]) {}
  int64_t image(int64_t n, int64_t d, int64_t p) const { return (n * width + d) * pixels + p; }
  int64_t first(int64_t n, int64_t d) const { return n * (1 + pixels) * width + d; }
  int64_t token(int64_t n, int64_t d, int64_t p) const { return first(n, d) + (1 + p) * width; }

  // visit(element of the images, element of the tokens)
  template <typename Visit>
  void each_pixel(const Visit& visit) const {
    for (int64_t n = 0; n < samples; ++n) {
      for (int64_t p = 0; p < pixels; ++p) {
        for (int64_t d = 0; d < width; ++d) visit(image(n, d, p), token(n, d, p));
      }
    }
  }
};

}  // namespace

Kernel prepare_image_tokens(const NodeView& view) {
  switch (view.node.pass) {
    case graph::Pass::Forward:
    case graph::Pass::Evaluate:
      return plain_kernel(view, [g = Geometry(view.write(0))]<typename T>(const Bindings& at) -> Task {
        const T *x = at.read<T>(0), *w = at.read<T>(1);
        T* y = at.write<T>(0);
        return [=](const StepContext&) {
          for (int64_t n = 0; n < g.samples; ++n) {
            for (int64_t d = 0; d < g.width; ++d) y[g.first(n, d)] = w[d];
          }
          g.each_pixel([&](int64_t image, int64_t token) { y[token] = x[image]; });
        };
      });
    case graph::Pass::InputGrad:
      return plain_kernel(view, [g = Geometry(view.read(0))]<typename T>(const Bindings& at) -> Task {
        const T* dy = at.read<T>(0);
        T* dx = at.write<T>(0);
        return [=](const StepContext&) { g.each_pixel([&](int64_t image, int64_t token) { dx[image] = dy[token]; }); };
      });
    case graph::Pass::WeightGrad:
      return plain_kernel(view, [g = Geometry(view.read(0))]<typename T>(const Bindings& at) -> Task {
        const T* dy = at.read<T>(0);
        T* dw = at.write<T>(0);
        return [=](const StepContext&) {
          for (int64_t d = 0; d < g.width; ++d) {
            double sum = 0;
            for (int64_t n = 0; n < g.samples; ++n) sum += dy[g.first(n, d)];
            dw[d] = static_cast<T>(sum);
          }
        };
      });
    default: refuse_pass(view);
  }
}

}  // namespace millrace::backend::reference
