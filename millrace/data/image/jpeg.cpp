#include "millrace/data/image/jpeg.h"

// clang-format off: libjpeg's headers need FILE and size_t, and jerror.h needs jpeglib.h.
#include <jerror.h>
#include <jpeglib.h>

#include <cstddef>
#include <cstdio>
// clang-format on

#include <algorithm>
#include <cassert>
#include <csetjmp>
#include <cstdlib>

#include "millrace/base/error.h"
#include "millrace/data/bad_sample.h"

namespace millrace::data {
namespace {

// libjpeg reports errors by a function that must not return. Throwing through a C library is not promised to work, so
// it jumps; nothing between setjmp and the jump has a destructor, and every function that calls setjmp keeps its
// variables in the state, not on the stack.
struct Errors {
  jpeg_error_mgr manager;  // first, so that libjpeg's pointer to it is a pointer to this
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX];
};

[[noreturn]] void stop(j_common_ptr info) {
  auto* errors = reinterpret_cast<Errors*>(info->err);
  errors->manager.format_message(info, errors->message);
  std::longjmp(errors->jump, 1);
}

bool is_harmless(int code) {
  switch (code) {
    case JWRN_EXTRANEOUS_DATA:  // bytes between the end of a scan and the next marker; cameras pad there
    case JWRN_ADOBE_XFORM:
    case JWRN_JFIF_MAJOR:
    case JWRN_NOT_SEQUENTIAL:  // spectral selection written into a sequential file, where it means nothing
    case JWRN_BOGUS_ICC: return true;
    default: return false;
  }
}

void warn(j_common_ptr info, int level) {
  if (level < 0 && !is_harmless(info->err->msg_code)) stop(info);
}

void print_nothing(j_common_ptr) {}

jpeg_error_mgr* use(Errors& errors) {
  jpeg_error_mgr* manager = jpeg_std_error(&errors.manager);
  manager->error_exit = stop;
  manager->emit_message = warn;
  manager->output_message = print_nothing;
  return manager;
}

// A progressive file of a few bytes a scan can ask for hours of work; encoders write about ten scans.
constexpr int kMaxScans = 200;

void limit_scans(j_common_ptr info) {
  if (!info->is_decompressor || reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= kMaxScans) return;
  auto* errors = reinterpret_cast<Errors*>(info->err);
  std::snprintf(errors->message, sizeof errors->message, "more than %d scans", kMaxScans);
  std::longjmp(errors->jump, 1);
}

constexpr int kRowsAtOnce = 16;

// The upsampling of chroma looks at the neighbour on each side: with these columns around, the edges of a part are what
// they are in the whole picture.
constexpr int kMargin = 2;

uint8_t times(int a, int b) { return static_cast<uint8_t>((a * b + 127) / 255); }

void rgb_of_cmyk(const uint8_t* cmyk, int width, bool inverted, int channels, uint8_t* out) {
  const int flip = inverted ? 0 : 255;
  for (int x = 0; x < width; ++x, cmyk += 4, out += channels) {
    const int black = cmyk[3] ^ flip;
    const uint8_t red = times(cmyk[0] ^ flip, black), green = times(cmyk[1] ^ flip, black),
                  blue = times(cmyk[2] ^ flip, black);
    if (channels == 3) {
      out[0] = red, out[1] = green, out[2] = blue;
    } else {
      out[0] = luma(red, green, blue);
    }
  }
}

}  // namespace

struct JpegDecoder::State {
  jpeg_decompress_struct info{};
  Errors errors{};
  jpeg_progress_mgr progress{};
  bool opened = false;
  std::vector<uint8_t> row;  // one row of CMYK, or one that nobody wants

  // Afresh for every file: libjpeg keeps the quantisation and Huffman tables of one file for the next, which would then
  // be accepted without having any. Takes a microsecond or two.
  bool create() {
    jpeg_destroy_decompress(&info);
    info.err = use(errors);
    if (setjmp(errors.jump)) return false;
    jpeg_create_decompress(&info);
    progress.progress_monitor = limit_scans;
    info.progress = &progress;
    return true;
  }

  bool read_header(const uint8_t* bytes, size_t size) {
    if (setjmp(errors.jump)) return false;
    jpeg_mem_src(&info, bytes, size);
    jpeg_read_header(&info, TRUE);
    return true;
  }

  bool start(J_COLOR_SPACE space, int eighths) {
    if (setjmp(errors.jump)) return false;
    info.out_color_space = space;
    info.scale_num = static_cast<unsigned>(eighths);
    info.scale_denom = 8;
    info.dct_method = JDCT_ISLOW;
    info.do_fancy_upsampling = TRUE;
    info.do_block_smoothing = FALSE;  // only guesses at scans that are missing
    jpeg_start_decompress(&info);
    return true;
  }

  bool crop(JDIMENSION* left, JDIMENSION* width) {
    if (setjmp(errors.jump)) return false;
    jpeg_crop_scanline(&info, left, width);
    return true;
  }

  bool skip(int rows) {
    if (setjmp(errors.jump)) return false;
    jpeg_skip_scanlines(&info, static_cast<JDIMENSION>(rows));
    return true;
  }

  bool read(uint8_t* first, size_t row_bytes, int rows) {
    if (setjmp(errors.jump)) return false;
    const JDIMENSION end = info.output_scanline + static_cast<JDIMENSION>(rows), begin = info.output_scanline;
    while (info.output_scanline < end) {
      JSAMPROW pointers[kRowsAtOnce];
      const int now = std::min(kRowsAtOnce, static_cast<int>(end - info.output_scanline));
      for (int i = 0; i < now; ++i) pointers[i] = first + (info.output_scanline - begin + i) * row_bytes;
      jpeg_read_scanlines(&info, pointers, static_cast<JDIMENSION>(now));
    }
    return true;
  }

  bool finish() {
    if (setjmp(errors.jump)) return false;
    jpeg_finish_decompress(&info);
    return true;
  }

  void need(bool good) {
    if (!good) refuse(errors.message);
  }

  [[noreturn]] void refuse(const char* why) {
    jpeg_abort_decompress(&info);
    opened = false;
    fail_sample("JPEG: {}", why);
  }

  // A file may give each component a scan of its own; one that never came would be grey. libjpeg latches a component's
  // quantisation table when its first scan begins.
  void need_all_components() {
    for (int c = 0; c < info.num_components; ++c) {
      if (info.comp_info[c].quant_table == nullptr) refuse("a colour component has no data");
    }
  }

  // Reads what follows the last row that was wanted. libjpeg leaves out the compressed data when asked to skip to the
  // very end, so the last row is decoded. Files of several scans were read whole at the start.
  void read_to_end() {
    if (jpeg_has_multiple_scans(&info)) {
      jpeg_abort_decompress(&info);
    } else {
      const int left = static_cast<int>(info.output_height - info.output_scanline);
      if (left > 1) need(skip(left - 1));
      if (left > 0) {
        grow_row();
        need(read(row.data(), 0, 1));
      }
      need(finish());
    }
    opened = false;
  }

  bool is_cmyk() const { return info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK; }

  // The nearest to the channels wanted that libjpeg converts to.
  J_COLOR_SPACE space(int channels) const {
    if (is_cmyk()) return JCS_CMYK;
    return channels == 3 ? JCS_RGB : JCS_GRAYSCALE;
  }

  void grow_row() {
    const size_t bytes = static_cast<size_t>(info.output_width) * 4;
    if (row.size() < bytes) row.resize(bytes);
  }
};

JpegDecoder::JpegDecoder() : state_(std::make_unique<State>()) {}

JpegDecoder::~JpegDecoder() { jpeg_destroy_decompress(&state_->info); }

JpegHeader JpegDecoder::open(std::span<const uint8_t> bytes) {
  State& state = *state_;
  if (!state.create()) fail_run("libjpeg: {}", state.errors.message);
  state.need(state.read_header(bytes.data(), bytes.size()));
  state.opened = true;
  JpegHeader header{static_cast<int>(state.info.image_width), static_cast<int>(state.info.image_height)};
  switch (state.info.jpeg_color_space) {
    case JCS_GRAYSCALE: header.color = JpegColor::Gray; break;
    case JCS_YCbCr:
    case JCS_RGB: header.color = JpegColor::Rgb; break;
    case JCS_CMYK:
    case JCS_YCCK: header.color = JpegColor::Cmyk; break;
    default: header.color = JpegColor::Other;
  }
  return header;
}

Rect JpegDecoder::decode(const Rect& part, int eighths, int channels, Image& out) {
  State& state = *state_;
  jpeg_decompress_struct& info = state.info;
  assert(state.opened && eighths >= 1 && eighths <= 8 && (channels == 1 || channels == 3));
  state.need(state.start(state.space(channels), eighths));
  state.need_all_components();

  const int whole_width = static_cast<int>(info.output_width), whole_height = static_cast<int>(info.output_height);
  Rect held;
  held.left = std::clamp(part.left * eighths / 8 - kMargin, 0, whole_width - 1);
  held.top = std::clamp(part.top * eighths / 8, 0, whole_height - 1);
  held.width = std::clamp((part.right() * eighths + 7) / 8 + kMargin, held.left + 1, whole_width) - held.left;
  held.height = std::clamp((part.bottom() * eighths + 7) / 8, held.top + 1, whole_height) - held.top;
  if (held.width < whole_width) {
    auto left = static_cast<JDIMENSION>(held.left), width = static_cast<JDIMENSION>(held.width);
    state.need(state.crop(&left, &width));
    held.left = static_cast<int>(left);
    held.width = static_cast<int>(width);
  }

  out.reshape(held.width, held.height, channels);
  if (held.top > 0) state.need(state.skip(held.top));
  if (state.is_cmyk()) {
    state.grow_row();
    for (int y = 0; y < held.height; ++y) {
      state.need(state.read(state.row.data(), 0, 1));
      rgb_of_cmyk(state.row.data(), held.width, info.saw_Adobe_marker, channels, out.row(y));
    }
  } else {
    state.need(state.read(out.pixels.data(), static_cast<size_t>(held.width) * channels, held.height));
  }
  state.read_to_end();
  return held;
}

// The same colour space as decode(): libjpeg passes over components that are not needed, and with them over errors.
void JpegDecoder::verify(int channels) {
  State& state = *state_;
  assert(state.opened);
  state.need(state.start(state.space(channels), 1));
  state.need_all_components();
  state.read_to_end();
}

namespace {

// What the encoder holds while it may jump; freed by the caller's frame.
struct Encoding {
  jpeg_compress_struct info{};
  Errors errors{};
  unsigned char* bytes = nullptr;
  unsigned long size = 0;

  Encoding() = default;
  Encoding(const Encoding&) = delete;
  Encoding& operator=(const Encoding&) = delete;
  ~Encoding() {
    jpeg_destroy_compress(&info);
    std::free(bytes);
  }

  bool run(const Image& image, const JpegOptions& options) {
    info.err = use(errors);
    if (setjmp(errors.jump)) return false;
    jpeg_create_compress(&info);
    jpeg_mem_dest(&info, &bytes, &size);
    info.image_width = static_cast<JDIMENSION>(image.width);
    info.image_height = static_cast<JDIMENSION>(image.height);
    info.input_components = image.channels;
    info.in_color_space = image.channels == 3 ? JCS_RGB : JCS_GRAYSCALE;
    jpeg_set_defaults(&info);
    jpeg_set_quality(&info, options.quality, TRUE);
    info.comp_info[0].h_samp_factor = image.channels == 3 && options.chroma != Chroma::Full ? 2 : 1;
    info.comp_info[0].v_samp_factor = image.channels == 3 && options.chroma == Chroma::Half ? 2 : 1;
    info.arith_code = options.arithmetic ? TRUE : FALSE;
    if (options.progressive) jpeg_simple_progression(&info);
    jpeg_start_compress(&info, TRUE);
    while (info.next_scanline < info.image_height) {
      JSAMPROW row = const_cast<JSAMPROW>(image.row(static_cast<int>(info.next_scanline)));
      jpeg_write_scanlines(&info, &row, 1);
    }
    jpeg_finish_compress(&info);
    return true;
  }
};

}  // namespace

std::vector<uint8_t> encode_jpeg(const Image& image, const JpegOptions& options) {
  if (image.width < 1 || image.height < 1 || (image.channels != 1 && image.channels != 3)) {
    fail_input("a picture of {}x{} pixels and {} channels is not one that JPEG files hold", image.width, image.height,
               image.channels);
  }
  Encoding encoding;
  if (!encoding.run(image, options)) fail_run("writing a JPEG: {}", encoding.errors.message);
  return {encoding.bytes, encoding.bytes + encoding.size};
}

}  // namespace millrace::data
