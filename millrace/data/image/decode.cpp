#include "millrace/data/image/decode.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "millrace/data/bad_sample.h"

namespace millrace::data {
namespace {

bool starts_with(std::span<const uint8_t> bytes, std::initializer_list<uint8_t> start) {
  return bytes.size() >= start.size() && std::equal(start.begin(), start.end(), bytes.begin());
}

void check_size(std::string_view format, int width, int height) {
  if (width < 1 || height < 1) fail_sample("{} of {}x{} pixels", format, width, height);
  if (width > kMaxSide || height > kMaxSide || int64_t{width} * height > kMaxPixels) {
    fail_sample("{} of {}x{} pixels: at most {} pixels a side and {} million in all are decoded", format, width, height,
                kMaxSide, kMaxPixels / 1'000'000);
  }
}

[[noreturn]] void refuse_color(std::string_view what, int channels) {
  fail_sample("{} where {} {} needed; write data.color: convert to turn it into {}", what, channels,
              channels == 1 ? "channel is" : "channels are", channels == 1 ? "grey" : "RGB");
}

void check_color(const JpegHeader& header, int channels, Color color) {
  if (header.color == JpegColor::Other) fail_sample("JPEG of unknown colours");
  if (color == Color::Convert) return;
  if (header.color == JpegColor::Cmyk) refuse_color("CMYK JPEG", channels);
  if (header.color == JpegColor::Gray && channels == 3) refuse_color("grayscale JPEG", channels);
  if (header.color == JpegColor::Rgb && channels == 1) refuse_color("colour JPEG", channels);
}

void check_color(const PngHeader& header, int channels, Color color) {
  if (color == Color::Convert) return;
  if (header.alpha) refuse_color("transparent PNG", channels);
  if (header.deep) refuse_color("PNG of 16 bits a channel", channels);
  if (header.gray && channels == 3) refuse_color("grayscale PNG", channels);
  if (!header.gray && channels == 1) refuse_color("colour PNG", channels);
}

}  // namespace

PictureFormat picture_format(std::span<const uint8_t> bytes) {
  if (starts_with(bytes, {0xFF, 0xD8, 0xFF})) return PictureFormat::Jpeg;
  if (starts_with(bytes, {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'})) return PictureFormat::Png;
  if (bytes.empty()) fail_sample("an empty file where a JPEG or PNG is expected");
  std::string found;
  for (const uint8_t byte : bytes.first(std::min<size_t>(bytes.size(), 8))) {
    fmt::format_to(std::back_inserter(found), "{}{:02X}", found.empty() ? "" : " ", byte);
  }
  fail_sample("neither JPEG nor PNG: it starts with {}, not with FF D8 FF or 89 50 4E 47", found);
}

Decoder::Header Decoder::open(std::span<const uint8_t> bytes, int channels, Color color) {
  bytes_ = bytes;
  channels_ = channels;
  header_.format = picture_format(bytes);
  const auto accept = [&](std::string_view format, const auto& header) {
    check_size(format, header.width, header.height);
    check_color(header, channels, color);
    header_.width = header.width;
    header_.height = header.height;
  };
  if (header_.format == PictureFormat::Jpeg) {
    accept("JPEG", jpeg_.open(bytes));
  } else {
    accept("PNG", read_png_header(bytes));
  }
  return header_;
}

Decoder::Part Decoder::decode(const Rect& part, int eighths, Image& out) {
  if (header_.format == PictureFormat::Jpeg) return {jpeg_.decode(part, eighths, channels_, out), eighths};
  decode_png(bytes_, channels_, out);
  return {Rect{0, 0, header_.width, header_.height}, 8};
}

void Decoder::verify(Image& scratch) {
  if (header_.format == PictureFormat::Jpeg) {
    jpeg_.verify(channels_);
  } else {
    decode_png(bytes_, channels_, scratch);
  }
}

void decode_picture(std::span<const uint8_t> bytes, int channels, Color color, Image& out) {
  Decoder decoder;
  const Decoder::Header header = decoder.open(bytes, channels, color);
  decoder.decode({0, 0, header.width, header.height}, 8, out);
}

}  // namespace millrace::data
