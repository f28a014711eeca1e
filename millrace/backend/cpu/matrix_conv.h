// Our own convolution as a product of matrices over the blocked layouts: pixels by (channel, tap), times (channel, tap)
// by output channels. It is for 1 x 1 filters, whose pixels are read where they lie, and for strides, where Winograd
// has no advantage: pixels are then brought together tap by tap, in pieces that stay in the cache. There are two forms:
//   product   as it stands
//   strassen  with an eighth fewer multiplications (strassen.h): pixels, input and output channels cut into halves
// Pixels of different samples are never combined: what a sample becomes does not depend on its neighbours.
#pragma once

#include <algorithm>
#include <vector>

#include "millrace/backend/cpu/conv_problem.h"

namespace millrace::backend::cpu {

// None where the shape, a bias, a ReLU or the layout of the weights (conv_problem.h) does not fit.
std::vector<Kernel> matrix_conv_kernels(const ConvProblem& problem, const Desc& weight);

namespace matrix_conv {

// A convolution of planes: which pixels of x each tap of a pixel of y reads.
struct Taps {
  BlockedShape x, y;
  graph::Window window;

  int64_t count() const { return window.kernel_h * window.kernel_w; }
  // Channel blocks of x, tap by tap: w[o block][i block][tap][i][o] has them in this order.
  int64_t blocks() const { return x.blocks() * count(); }
  // Pixels are their own only tap.
  bool plain() const { return count() == 1 && window.stride_h == 1 && window.stride_w == 1; }

  // What pixels [first, first + rows) of y of sample n read, for one block of blocks(); zero outside of x, and for
  // pixels past the last of y.
  void gather(const Lanes* from, int64_t n, int64_t block, int64_t first, int64_t rows, Lanes* to) const;
  // The way back: adds to what they have read.
  void scatter(const Lanes* from, int64_t n, int64_t block, int64_t first, int64_t rows, Lanes* to) const;

 private:
  template <typename Visit>
  void visit(int64_t n, int64_t block, int64_t first, int64_t rows, const Visit& visit_pixel) const;
};

// How many pixels a unit of work has: few enough that what it reads again and again stays in the nearer caches, many
// enough that the rest is not read too often.
constexpr int64_t kMostPixels = 200;

// Pixels [first, first + rows) of `images` samples from n on.
struct Unit {
  int64_t n, images;
  int64_t first, rows;
};

// The pixels of a batch in units of equal size; small images come several at a time.
class Units {
 public:
  Units(int64_t batch, int64_t pixels, int64_t most, int threads) : batch_(batch), pixels_(pixels) {
    per_image = (pixels + most - 1) / most;
    rows = (pixels + per_image - 1) / per_image;
    images = per_image > 1 ? 1 : std::clamp<int64_t>(most / rows, 1, std::max<int64_t>(1, batch / threads));
    count = (batch + images - 1) / images * per_image;
  }
  // Units of the same images follow each other.
  Unit at(int64_t index) const {
    const int64_t n = index / per_image * images, first = index % per_image * rows;
    return {n, std::min(images, batch_ - n), first, std::min(rows, pixels_ - first)};
  }

  int64_t images, rows;  // of a unit, at most
  int64_t per_image, count;

 private:
  int64_t batch_, pixels_;
};

std::vector<Kernel> forward_kernels(const Taps& taps);
std::vector<Kernel> input_gradient_kernels(const Taps& taps);
std::vector<Kernel> weight_gradient_kernels(const Taps& taps);

}  // namespace matrix_conv
}  // namespace millrace::backend::cpu
