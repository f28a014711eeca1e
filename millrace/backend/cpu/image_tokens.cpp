// From images in channel blocks to a token and the pixels behind it as plain rows, and back.
#include <algorithm>

#include "millrace/backend/cpu/blocked.h"
#include "millrace/backend/cpu/kernels.h"

namespace millrace::backend::cpu {
namespace {

// Calls visit(place of the vector in the images, row of the tokens, block) for each vector of channels.
template <typename Visit>
void each_vector(const BlockedShape& image, const Visit& visit) {
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t n = 0; n < image.batch; ++n) {
    for (int64_t pixel = 0; pixel < image.pixels(); ++pixel) {
      for (int64_t block = 0; block < image.blocks(); ++block) {
        visit(image.plane(n, block) + pixel, n * (1 + image.pixels()) + 1 + pixel, block);
      }
    }
  }
}

void forward(const BlockedShape& image, const Lanes* x, const float* w, float* y) {
  const int64_t width = image.channels;
  for (int64_t n = 0; n < image.batch; ++n) std::copy_n(w, width, y + n * (1 + image.pixels()) * width);
  each_vector(image, [=](int64_t vector, int64_t row, int64_t block) {
    store_channels(x[vector], y + row * width, block, width);
  });
}

void input_grad(const BlockedShape& image, const float* dy, Lanes* dx) {
  const int64_t width = image.channels;
  each_vector(image, [=](int64_t vector, int64_t row, int64_t block) {
    dx[vector] = load_channels(dy + row * width, block, width);
  });
}

// A thread has some of the columns and adds the samples in their order.
void weight_grad(int64_t samples, int64_t length, int64_t width, const float* dy, float* dw) {
#pragma omp parallel for schedule(static)
  for (int64_t first = 0; first < width; first += kBlock) {
    const int64_t block = first / kBlock;
    Lanes sum{};
    for (int64_t n = 0; n < samples; ++n) sum += load_channels(dy + n * length * width, block, width);
    store_channels(sum, dw, block, width);
  }
}

}  // namespace

Kernel prepare_image_tokens(const NodeView& view) {
  switch (view.node.pass) {
    case graph::Pass::InputGrad:
      return {"loop", 0, [image = BlockedShape(view.write(0))](const Bindings& bind) -> Task {
                return [=, dy = bind.read<float>(0), dx = bind.write<Lanes>(0)](const StepContext&) {
                  input_grad(image, dy, dx);
                };
              }};
    case graph::Pass::WeightGrad:
      return {"loop", 0, [tokens = view.read(0)](const Bindings& bind) -> Task {
                return [=, dy = bind.read<float>(0), dw = bind.write<float>(0)](const StepContext&) {
                  weight_grad(tokens[0], tokens[1], tokens[2], dy, dw);
                };
              }};
    default:
      return {"loop", 0, [image = BlockedShape(view.read(0))](const Bindings& bind) -> Task {
                return [=, x = bind.read<Lanes>(0), w = bind.read<float>(1),
                        y = bind.write<float>(0)](const StepContext&) { forward(image, x, w, y); };
              }};
  }
}

}  // namespace millrace::backend::cpu
