// Our own 1 x 1 convolution: a product of matrices in the blocked layouts as they are, in two forms:
//   pointwise  as it stands
//   strassen   with an eighth fewer multiplications (strassen.h): pixels, input and output channels cut into halves
// Pixels of different samples are never combined: what a sample becomes does not depend on its neighbours.
// Strides are steps over pixels, which are brought together before (forward, weight gradient) or spread after (input
// gradient).
#pragma once

#include <algorithm>
#include <vector>

#include "millrace/backend/backend.h"
#include "millrace/backend/cpu/blocked.h"
#include "millrace/backend/cpu/onednn.h"

namespace millrace::backend::cpu {

struct PointwiseProblem {
  graph::Pass pass;
  Shape x, y;
  graph::Conv2dAttrs attrs;
  bool relu;  // forward only
};

// None where the shape, a bias, a ReLU or the layout of the weights (OIhw16i16o, or its 8-channel form) does not fit.
std::vector<Kernel> pointwise_kernels(const PointwiseProblem& problem, const Desc& weight);

namespace pointwise {

// Which pixels of images take part: one of every stride_h x stride_w, `rows` x `columns` of them.
struct Grid {
  int64_t height, width;  // of the image
  int64_t stride_h, stride_w;
  int64_t rows, columns;

  bool whole() const { return stride_h == 1 && stride_w == 1; }
  int64_t pixels() const { return rows * columns; }
};

// Copies pixels [first, first + count) of the grid of one plane; those past its last are zero.
void gather(const Grid& grid, const Lanes* plane, int64_t first, int64_t count, Lanes* to);
// The way back: each pixel of the grid brings the zeros around it.
void scatter(const Grid& grid, const Lanes* from, int64_t first, int64_t count, Lanes* plane);

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
    per_image_ = (pixels + most - 1) / most;
    rows = (pixels + per_image_ - 1) / per_image_;
    images = per_image_ > 1 ? 1 : std::clamp<int64_t>(most / rows, 1, std::max<int64_t>(1, batch / threads));
    count = (batch + images - 1) / images * per_image_;
  }
  Unit at(int64_t index) const {
    const int64_t n = index / per_image_ * images, first = index % per_image_ * rows;
    return {n, std::min(images, batch_ - n), first, std::min(rows, pixels_ - first)};
  }

  int64_t images, rows;  // of a unit, at most
  int64_t count;

 private:
  int64_t batch_, pixels_, per_image_;
};

std::vector<Kernel> convolution_kernels(const PointwiseProblem& problem, bool turned);
std::vector<Kernel> weight_gradient_kernels(const PointwiseProblem& problem);

}  // namespace pointwise
}  // namespace millrace::backend::cpu
