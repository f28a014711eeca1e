// Dropout. The mask is drawn again in the backward pass instead of being stored.
#include "millrace/backend/cpu/blocked.h"
#include "millrace/backend/cpu/kernels.h"
#include "millrace/backend/dropout_mask.h"

namespace millrace::backend::cpu {
namespace {

// One row of plain elements.
void mask_row(const DropoutMask& mask, const RandomStream& random, const float* x, float* y, int64_t elements) {
  const auto scale = static_cast<float>(mask.scale());
  int64_t i = 0;
  for (; i + 4 <= elements; i += 4) {
    const RandomBlock words = random.at(static_cast<uint64_t>(i) / 4);
    for (int k = 0; k < 4; ++k) y[i + k] = mask.keeps(words[k]) ? x[i + k] * scale : 0.0f;
  }
  if (i == elements) return;
  const RandomBlock words = random.at(static_cast<uint64_t>(i) / 4);
  for (int k = 0; i + k < elements; ++k) y[i + k] = mask.keeps(words[k]) ? x[i + k] * scale : 0.0f;
}

// One row in channel blocks; the numbers are those of the plain order. The padding stays zero.
void mask_blocked_row(const DropoutMask& mask, const RandomStream& random, const BlockedShape& shape, int64_t n,
                      const float* x, float* y) {
  const auto scale = static_cast<float>(mask.scale());
  for (int64_t block = 0; block < shape.blocks(); ++block) {
    const int64_t base = shape.plane(n, block) * kBlock;
    for (int64_t pixel = 0; pixel < shape.pixels(); ++pixel) {
      for (int lane = 0; lane < kBlock; ++lane) {
        const int64_t channel = block * kBlock + lane, i = base + pixel * kBlock + lane;
        const auto element = static_cast<uint64_t>(channel * shape.pixels() + pixel);
        const bool keep = channel < shape.channels && mask.keeps(random.at(element / 4)[element % 4]);
        y[i] = keep ? x[i] * scale : 0.0f;
      }
    }
  }
}

}  // namespace

Kernel prepare_dropout(const NodeView& view) {
  const DropoutMask mask(view.node.name, view.attrs<graph::DropoutAttrs>().probability);
  const Shape shape = view.read(0);
  return {"loop", 0, [=](const Bindings& bind) -> Task {
            const auto* x = bind.read<float>(0);
            auto* y = bind.write<float>(0);
            const int64_t rows = shape[0], elements = shape.elements() / rows;
            if (shape.rank() == 4) {
              return [=, blocked = BlockedShape(shape)](const StepContext& step) {
#pragma omp parallel for schedule(static)
                for (int64_t n = 0; n < rows; ++n) mask_blocked_row(mask, mask.row(step, n), blocked, n, x, y);
              };
            }
            return [=](const StepContext& step) {
#pragma omp parallel for schedule(static)
              for (int64_t n = 0; n < rows; ++n) {
                mask_row(mask, mask.row(step, n), x + n * elements, y + n * elements, elements);
              }
            };
          }};
}

}  // namespace millrace::backend::cpu
