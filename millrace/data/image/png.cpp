#include "millrace/data/image/png.h"

#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "millrace/base/error.h"
#include "millrace/data/bad_sample.h"

namespace millrace::data {
namespace {

// libpng's errors jump, as libjpeg's do; see jpeg.cpp. The rows are decoded to RGBA or grey and alpha, one at a time
// unless the file is interlaced.
struct Reading {
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::span<const uint8_t> rest;
  PngHeader header;
  char message[200] = "";
  std::vector<uint8_t> rows;  // with all channels, before they become those that are wanted

  explicit Reading(std::span<const uint8_t> bytes) : rest(bytes) {}
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;
  ~Reading() { png_destroy_read_struct(&png, &info, nullptr); }

  static void stop(png_structp png, png_const_charp text) {
    auto* self = static_cast<Reading*>(png_get_error_ptr(png));
    std::snprintf(self->message, sizeof self->message, "%s", text);
    png_longjmp(png, 1);
  }
  static void warn(png_structp, png_const_charp) {}

  static void read(png_structp png, png_bytep into, size_t bytes) {
    auto* self = static_cast<Reading*>(png_get_io_ptr(png));
    if (self->rest.size() < bytes) png_error(png, "the file ends early");
    std::memcpy(into, self->rest.data(), bytes);
    self->rest = self->rest.subspan(bytes);
  }

  bool read_header() {
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, stop, warn);
    if (png == nullptr || (info = png_create_info_struct(png)) == nullptr) {
      std::snprintf(message, sizeof message, "libpng has no memory");
      return false;
    }
    if (setjmp(png_jmpbuf(png))) return false;
    png_set_read_fn(png, this, read);
    // What does not change pixels is not even parsed: colour profiles are often broken, text may unpack to much.
    static const png_byte ignored[] =
        "cHRM\0eXIf\0gAMA\0hIST\0iCCP\0iTXt\0oFFs\0pCAL\0pHYs\0sBIT\0sCAL\0sPLT\0sRGB\0tEXt\0"
        "tIME\0zTXt";
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, nullptr, 0);
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, ignored, sizeof ignored / 5);
    png_read_info(png, info);
    const int color = png_get_color_type(png, info);
    header.width = static_cast<int>(png_get_image_width(png, info));
    header.height = static_cast<int>(png_get_image_height(png, info));
    header.gray = (color & PNG_COLOR_MASK_COLOR) == 0;
    header.deep = png_get_bit_depth(png, info) == 16;
    header.alpha = (color & PNG_COLOR_MASK_ALPHA) != 0 || png_get_valid(png, info, PNG_INFO_tRNS) != 0;
    return true;
  }

  // Grey stays grey, all else becomes RGB; alpha follows where there is any.
  int channels() const { return (header.gray ? 1 : 3) + (header.alpha ? 1 : 0); }
  size_t row_bytes() const { return static_cast<size_t>(header.width) * channels(); }

  bool read_rows(uint8_t* into) {
    if (setjmp(png_jmpbuf(png))) return false;
    png_set_expand(png);
    png_set_scale_16(png);
    const int passes = png_set_interlace_handling(png);
    png_read_update_info(png, info);
    if (png_get_rowbytes(png, info) != row_bytes()) png_error(png, "rows of an unexpected length");
    for (int pass = 0; pass < passes; ++pass) {
      for (int y = 0; y < header.height; ++y) png_read_row(png, into + y * row_bytes(), nullptr);
    }
    png_read_end(png, nullptr);
    return true;
  }

  void need(bool good) const {
    if (!good) fail_sample("PNG: {}", message);
  }
};

uint8_t over_black(int level, int alpha) { return static_cast<uint8_t>((level * alpha + 127) / 255); }

void convert_row(const uint8_t* from, const PngHeader& header, int channels, uint8_t* to) {
  const int colors = header.gray ? 1 : 3, stride = colors + (header.alpha ? 1 : 0);
  for (int x = 0; x < header.width; ++x, from += stride, to += channels) {
    const int alpha = header.alpha ? from[colors] : 255;
    uint8_t rgb[3];
    for (int c = 0; c < 3; ++c) rgb[c] = over_black(from[colors == 3 ? c : 0], alpha);
    if (channels == 3) {
      std::memcpy(to, rgb, 3);
    } else {
      to[0] = colors == 1 ? rgb[0] : luma(rgb[0], rgb[1], rgb[2]);
    }
  }
}

}  // namespace

PngHeader read_png_header(std::span<const uint8_t> bytes) {
  Reading reading(bytes);
  reading.need(reading.read_header());
  return reading.header;
}

void decode_png(std::span<const uint8_t> bytes, int channels, Image& out) {
  Reading reading(bytes);
  reading.need(reading.read_header());
  const PngHeader& header = reading.header;
  out.reshape(header.width, header.height, channels);
  if (reading.channels() == channels && !header.alpha) {
    reading.need(reading.read_rows(out.pixels.data()));
    return;
  }
  reading.rows.resize(reading.row_bytes() * header.height);
  reading.need(reading.read_rows(reading.rows.data()));
  for (int y = 0; y < header.height; ++y) {
    convert_row(reading.rows.data() + y * reading.row_bytes(), header, channels, out.row(y));
  }
}

std::vector<uint8_t> encode_png(const Image& image) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(image.width);
  png.height = static_cast<png_uint_32>(image.height);
  png.format = image.channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
  if (image.width < 1 || image.height < 1 || (image.channels != 1 && image.channels != 3)) {
    fail_input("a picture of {}x{} pixels and {} channels is not one that is written as PNG", image.width, image.height,
               image.channels);
  }
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(png);
  std::vector<uint8_t> bytes(size);
  if (!png_image_write_to_memory(&png, bytes.data(), &size, 0, image.pixels.data(), 0, nullptr)) {
    fail_run("writing a PNG: {}", png.message);
  }
  bytes.resize(size);
  return bytes;
}

}  // namespace millrace::data
