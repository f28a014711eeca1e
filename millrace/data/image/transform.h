// From a stored picture to the network's input: the part of it that this epoch uses, decoded at no more than the size
// needed, resized, mirrored and normalised. What comes out depends only on the picture, the key, the epoch and the
// sample; whether a picture is refused depends only on the picture.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "millrace/data/files/image_source.h"
#include "millrace/data/image/crop.h"
#include "millrace/data/image/decode.h"
#include "millrace/data/image/resample.h"
#include "millrace/job/job.h"

namespace millrace::data {

// Const throughout and safe to share; each thread brings a Scratch.
class ImageTransform {
 public:
  struct Scratch {
    Decoder decoder;
    Image image;
    Resampler resampler;
    std::vector<float> levels;
  };

  // To channels x size x size. `mean` and `std` are of levels 0 to 255, one per channel; `key` is the seed and purpose
  // that the crops are drawn from, as of sample_key(). The transform's kind must be settled, not Auto.
  ImageTransform(const job::Transform& transform, int size, int channels, std::span<const float> mean,
                 std::span<const float> std, Color color, uint64_t key);

  // Throws BadSample, saying what is wrong with the picture but not where it stands.
  void apply(const StoredImage& stored, int64_t epoch, int64_t sample, Scratch& scratch, float* out) const;

  // Throws exactly where apply() would, in whatever epoch; cheaper where it can be.
  void check(const StoredImage& stored, Scratch& scratch) const;

  // The same pixels as apply(), rounded to 8 bits, not normalised.
  void picture(const StoredImage& stored, int64_t epoch, int64_t sample, Scratch& scratch, Image& out) const;

  // The two halves of apply(): decode() leaves pixels in the scratch, write() resizes them.
  struct Decoded {
    Box box;       // in the coordinates of scratch.image
    Rect visible;  // what the filter may look at
    bool mirror = false;
  };
  Decoded decode(const StoredImage& stored, int64_t epoch, int64_t sample, Scratch& scratch) const;
  void write(const Decoded& decoded, Scratch& scratch, const Normalization& normalization, float* out) const;

 private:
  struct Extent {
    int width, height;
  };
  Extent open(const StoredImage& stored, Scratch& scratch) const;
  void read_raw(const StoredImage& stored, Image& image) const;

  job::Transform transform_;
  int size_;
  int channels_;
  Normalization normalization_;
  Color color_;
  uint64_t key_;
};

}  // namespace millrace::data
