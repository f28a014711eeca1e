// PNG files in and out, on libpng. Always the whole picture: its rows can only be read from the first on, and the last
// one tells whether the file is complete.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "millrace/data/image/image.h"

namespace millrace::data {

struct PngHeader {
  int width = 0;
  int height = 0;
  bool gray = false;   // grey, with 1 to 16 bits; else colours, direct or from a palette
  bool deep = false;   // 16 bits a channel
  bool alpha = false;  // an alpha channel, or transparent colours
};

// Throws BadSample where the file does not start as a PNG does.
PngHeader read_png_header(std::span<const uint8_t> bytes);

// To 3 channels or 1. Palettes and fewer than 8 bits are expanded, 16 bits rounded to 8, what is transparent is laid
// over black, colours become grey or grey colours where they differ. Gamma and colour profiles are ignored. Throws
// BadSample where the file is broken or ends early.
void decode_png(std::span<const uint8_t> bytes, int channels, Image& out);

std::vector<uint8_t> encode_png(const Image& image);

}  // namespace millrace::data
