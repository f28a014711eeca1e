// A fuzzer of the JPEG decoder: whatever the bytes, it decodes or throws BadSample, and the verdict is the same for
// every part and size. Build and run it for as long as you like:
//   clang++-14 -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -I. tests/data/image/fuzz_jpeg.cpp \
//     millrace/data/image/jpeg.cpp -ljpeg -lfmt -o fuzz_jpeg
//   mkdir found && ./fuzz_jpeg -max_len=4096 -max_total_time=60 found tests/data/image/corpus/jpeg
#include <cstdlib>
#include <optional>
#include <string>

#include "millrace/data/bad_sample.h"
#include "millrace/data/image/jpeg.h"

using namespace millrace::data;

namespace {

constexpr int64_t kMaxPixels = 1 << 18;

struct Verdict {
  bool tried = false;  // false: too large for a fuzzer
  std::optional<std::string> refusal;
  bool operator==(const Verdict&) const = default;
};

// eighths 0: only verified.
Verdict judge(JpegDecoder& decoder, std::span<const uint8_t> bytes, const Rect& part, int eighths, int channels) {
  static Image image;
  Verdict verdict;
  try {
    const JpegHeader header = decoder.open(bytes);
    if (int64_t{header.width} * header.height > kMaxPixels || header.color == JpegColor::Other) return verdict;
    verdict.tried = true;
    if (eighths == 0) {
      decoder.verify(channels);
    } else {
      const Rect all{0, 0, header.width, header.height};
      const Rect held = decoder.decode(part.width > 0 ? part : all, eighths, channels, image);
      if (image.width != held.width || image.height != held.height || held.width < 1 || held.height < 1) std::abort();
    }
  } catch (const BadSample& bad) {
    verdict.refusal = bad.what();
  }
  return verdict;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static JpegDecoder decoder;
  const std::span<const uint8_t> bytes(data, size);
  for (const int channels : {1, 3}) {
    const Verdict expected = judge(decoder, bytes, {}, 0, channels);
    if (!expected.tried) continue;
    if (judge(decoder, bytes, {}, 8, channels) != expected) std::abort();
    if (judge(decoder, bytes, {5, 7, 6, 9}, 4, channels) != expected) std::abort();
    if (judge(decoder, bytes, {0, 20, 30, 3}, 8, channels) != expected) std::abort();
    if (judge(decoder, bytes, {17, 0, 1, 40}, 1, channels) != expected) std::abort();
  }
  return 0;
}
