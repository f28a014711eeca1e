#include "millrace/data/contact_sheet.h"

#include <algorithm>
#include <cmath>

#include "millrace/data/bad_sample.h"
#include "millrace/data/image/decode.h"
#include "millrace/data/image/resize.h"

namespace millrace::data {
namespace {

constexpr int kGap = 8;
constexpr uint8_t kPaper = 245;

// `picture` at the middle of the cell, its longer side as long as the cell.
void paste(const Image& picture, int left, int top, int cell, Image& sheet) {
  const double scale = static_cast<double>(cell) / std::max(picture.width, picture.height);
  const int width = std::max(1, static_cast<int>(std::lround(picture.width * scale)));
  const int height = std::max(1, static_cast<int>(std::lround(picture.height * scale)));
  Image small;
  resize_picture(picture, width, height, small);
  for (int y = 0; y < height; ++y) {
    uint8_t* row = sheet.row(top + (cell - height) / 2 + y) + static_cast<size_t>(left + (cell - width) / 2) * 3;
    for (int i = 0; i < width * 3; ++i) row[i] = small.row(y)[small.channels == 3 ? i : i / 3];
  }
}

void as_stored(const StoredImage& stored, const SheetOptions& options, Image& out) {
  if (stored.raw_size == 0) return decode_picture(stored.bytes, options.channels, options.color, out);
  out.width = out.height = stored.raw_size;
  out.channels = 3;
  const auto area = static_cast<size_t>(stored.raw_size) * stored.raw_size;
  out.pixels.resize(area * 3);
  for (size_t i = 0; i < area * 3; ++i) out.pixels[i % area * 3 + i / area] = stored.bytes[i];
}

}  // namespace

Image contact_sheet(const ImageSource& source, std::span<const int64_t> samples, const ImageTransform& transform,
                    const SheetOptions& options) {
  const int step = options.cell + kGap;
  Image sheet;
  // The stored picture stands a little apart.
  sheet.width = 2 * kGap + (1 + options.epochs) * step;
  sheet.height = kGap + static_cast<int>(samples.size()) * step;
  sheet.pixels.assign(static_cast<size_t>(sheet.width) * sheet.height * 3, kPaper);
  StoredImage stored;
  ImageTransform::Scratch scratch;
  Image picture;
  for (size_t i = 0; i < samples.size(); ++i) {
    const int top = kGap + static_cast<int>(i) * step;
    try {
      source.read(samples[i], stored);
      as_stored(stored, options, picture);
      paste(picture, kGap, top, options.cell, sheet);
      for (int epoch = 0; epoch < options.epochs; ++epoch) {
        transform.picture(stored, epoch, samples[i], scratch, picture);
        paste(picture, 2 * kGap + (1 + epoch) * step, top, options.cell, sheet);
      }
    } catch (const BadSample&) {
      // Its place stays empty; the survey says why.
    }
  }
  return sheet;
}

}  // namespace millrace::data
