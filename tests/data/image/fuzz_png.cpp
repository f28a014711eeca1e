// A fuzzer of the PNG decoder: whatever the bytes, it decodes or throws BadSample. Checksums are wrong in nearly all
// that a fuzzer makes up, so it mends them first. Build and run it for as long as you like:
//   clang++-14 -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -I. tests/data/image/fuzz_png.cpp \
//     millrace/data/image/png.cpp -lpng -lz -lfmt -o fuzz_png
//   mkdir found && ./fuzz_png -max_len=4096 -max_total_time=60 found tests/data/image/corpus/png
#include <zlib.h>

#include <cstdlib>
#include <vector>

#include "millrace/data/bad_sample.h"
#include "millrace/data/image/png.h"

using namespace millrace::data;

namespace {

constexpr int64_t kMaxPixels = 1 << 18;

// Chunks are length, name, data, checksum of name and data, from byte 8 on.
void mend_checksums(std::vector<uint8_t>& bytes) {
  for (size_t at = 8; at + 12 <= bytes.size();) {
    const size_t length = size_t{bytes[at]} << 24 | bytes[at + 1] << 16 | bytes[at + 2] << 8 | bytes[at + 3];
    if (length > bytes.size() - at - 12) return;
    const auto sum = static_cast<uint32_t>(crc32(0, bytes.data() + at + 4, static_cast<unsigned>(length) + 4));
    for (int i = 0; i < 4; ++i) bytes[at + 8 + length + i] = static_cast<uint8_t>(sum >> (24 - 8 * i));
    at += 12 + length;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<uint8_t> bytes(data, data + size);
  mend_checksums(bytes);
  static Image image;
  for (const int channels : {1, 3}) {
    try {
      const PngHeader header = read_png_header(bytes);
      if (int64_t{header.width} * header.height > kMaxPixels) return 0;
      decode_png(bytes, channels, image);
      if (image.width != header.width || image.height != header.height) std::abort();
    } catch (const BadSample&) {
    }
  }
  return 0;
}
