// Any stored picture to pixels: which format it is, whether its size and colours are acceptable, and the part of it
// that is wanted.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "millrace/data/image/jpeg.h"
#include "millrace/data/image/png.h"
#include "millrace/job/job.h"

namespace millrace::data {

// What happens to pictures that do not have the network's channels.
//   Strict   only what is lost in no way: JPEG and 8-bit PNG with as many channels as are needed, also PNG palettes
//            (to 3 channels) and grey PNG of 1, 2 or 4 bits (to 1 channel). All else is a BadSample.
//   Convert  grey to RGB and back, CMYK and YCCK to RGB, PNG of 16 bits to 8, transparent PNG over black.
using job::Color;

// Larger pictures are refused before any memory is taken for them. 65,500 is the most libjpeg decodes.
constexpr int kMaxSide = 65'500;
constexpr int64_t kMaxPixels = 400'000'000;

enum class PictureFormat { Jpeg, Png };

// By the first bytes; BadSample where they are of neither format.
PictureFormat picture_format(std::span<const uint8_t> bytes);

// One per thread, reused from picture to picture.
class Decoder {
 public:
  struct Header {
    PictureFormat format = PictureFormat::Jpeg;
    int width = 0;
    int height = 0;
  };

  // What was decoded: where `out` lies in the picture reduced to `eighths`/8.
  struct Part {
    Rect held;
    int eighths = 8;
  };

  // Starts a picture that is to have 3 channels or 1, or refuses it. The bytes must stay until it is decoded.
  Header open(std::span<const uint8_t> bytes, int channels, Color color);

  // Decodes at least `part` of the opened picture, in its own pixels, at no less than `eighths`/8 of its size. PNG
  // pictures come whole.
  Part decode(const Rect& part, int eighths, Image& out);

  // Throws exactly where decode() would, whatever part it is given.
  void verify(Image& scratch);

 private:
  JpegDecoder jpeg_;
  std::span<const uint8_t> bytes_;
  Header header_;
  int channels_ = 3;
};

// The whole picture, for those who want one and not many.
void decode_picture(std::span<const uint8_t> bytes, int channels, Color color, Image& out);

}  // namespace millrace::data
