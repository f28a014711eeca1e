// Which part of a picture is used: pure functions of the picture's size, the job's transform and a random stream, so
// that a sample of an epoch is the same on any worker.
#pragma once

#include "millrace/base/random.h"
#include "millrace/data/image/image.h"
#include "millrace/job/job.h"

namespace millrace::data {

struct CropBox {
  Box box;  // of the picture; pad_crop's may reach over its edges, where everything is zero
  // Whether pixels at the edge of the box are smoothed with those beyond it: as if the picture had been resized and
  // then cut (center_crop), not cut and then resized (random_resized_crop).
  bool smooth_over_edge = false;
  bool mirror = false;
  bool operator==(const CropBox&) const = default;
};

// torchvision's rule: a share of the area drawn evenly and a shape drawn evenly in its logarithm, until they fit; its
// place evenly. After `attempts` the largest middle part with an allowed shape.
CropBox random_resized_crop(int width, int height, const job::Transform& transform, const RandomStream& random);

// The short side resized to short_side, then the middle of size x size, as one box. With short_side < size the middle
// square of the picture is enlarged: there is nothing more to show.
CropBox center_crop(int width, int height, int size, const job::Transform& transform);

// size x size whole pixels out of the picture with `pad` around it; BadSample where it is too small for that.
CropBox pad_crop(int width, int height, int size, const job::Transform& transform, const RandomStream& random);

// All of it.
CropBox resize_all(int width, int height);

bool is_mirrored(const job::Transform& transform, const RandomStream& random);

// The transform's crop and mirror for this sample of this epoch. `key` tells training from test and seeds apart. The
// transform's kind must have been settled: Auto is refused.
CropBox choose_crop(int width, int height, int size, const job::Transform& transform, uint64_t key, int64_t epoch,
                    int64_t sample);

// The smallest M/8 at which a decoder may work: the box is still at least as large as the output. Only halvings, for
// which libjpeg-turbo has vector code; its plain 5/8, 6/8 and 7/8 take longer than the pixels they save.
int reduction(const Box& box, int size);

}  // namespace millrace::data
