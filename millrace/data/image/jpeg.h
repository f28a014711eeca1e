// JPEG files in and out, on libjpeg-turbo. A decoder works out only what is asked for - a rectangle, at a reduced size
// - but always reads the compressed data to its end, so that whether a file is broken does not depend on which part of
// it was wanted.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "millrace/data/image/image.h"

namespace millrace::data {

enum class JpegColor { Gray, Rgb, Cmyk, Other };  // Rgb: stored as YCbCr or as RGB; Cmyk: or as YCCK

struct JpegHeader {
  int width = 0;
  int height = 0;
  JpegColor color = JpegColor::Rgb;
};

// One per thread, reused from file to file. What is wrong with a file is thrown as BadSample: libjpeg's errors, and
// those of its warnings that leave wrong pixels (data that ends early, bad codes, lost synchronisation). Warnings
// without effect on the pixels are passed over: bytes before a marker that nothing needs, an unknown JFIF or Adobe
// version. The orientation an EXIF block may ask for is not applied.
class JpegDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // Starts a file. The bytes must stay until decode() or verify() has returned.
  JpegHeader open(std::span<const uint8_t> bytes);

  // Decodes the part of the opened file that covers `part` (in its own pixels) at `eighths`/8 of its size, 1 to 8, to
  // 3 channels or 1. `out` may be larger than the part; returned is where it lies in the reduced picture. Pixels are
  // those of the whole picture decoded at that size. Colours are converted where they differ; CMYK as
  // (255 - c)(255 - k) / 255, inverted first where Adobe's marker says that it is stored so.
  Rect decode(const Rect& part, int eighths, int channels, Image& out);

  // Reads the opened file to its end and throws exactly where decode() to as many channels would; cheaper.
  void verify(int channels);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

enum class Chroma { Full, HalfWidth, Half };  // 4:4:4, 4:2:2, 4:2:0

struct JpegOptions {
  int quality = 90;  // 1 to 100
  Chroma chroma = Chroma::Half;
  bool progressive = false;
  bool arithmetic = false;  // arithmetic instead of Huffman codes
};

std::vector<uint8_t> encode_jpeg(const Image& image, const JpegOptions& options);
inline std::vector<uint8_t> encode_jpeg(const Image& image, int quality) {
  return encode_jpeg(image, JpegOptions{.quality = quality});
}

}  // namespace millrace::data
