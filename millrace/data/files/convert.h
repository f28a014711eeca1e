// Writes a stored set of pictures in another form. Encoded pictures pass unchanged wherever the target stores encoded
// ones. The work is cut into parts that appear whole or not at all and are noted in convert.json beside them, so a
// conversion that was interrupted goes on where it stopped. What is written does not depend on the threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "millrace/data/files/image_kind.h"
#include "millrace/data/files/image_source.h"
#include "millrace/data/image/image.h"

namespace millrace::data {

struct ConvertOptions {
  ImageKind to = ImageKind::OfRecord;
  bool train = true;     // CIFAR: which of the two splits' files to write
  int parts = 0;         // 0: one per 5,000 pictures, at most 1,024. CIFAR has its own number
  int threads = 0;       // 0: those of the machine, at most 8
  int quality = 0;       // raw pixels become JPEG of this quality; 0: PNG, without loss
  bool resize = false;   // CIFAR: pictures of other sizes are resized instead of refused
  bool shuffle = false;  // in an order drawn from `seed`, so that parts mix the classes
  uint64_t seed = 0;
  bool skip_bad = false;  // bad samples are left out and listed; else the first one stops the conversion

  // What formats there are is none of this folder's business. Only those that are needed are called, from any thread.
  std::function<void(const StoredImage&, Image&)> decode;
  std::function<std::vector<uint8_t>(const Image&)> encode_png;
  std::function<std::vector<uint8_t>(const Image&, int quality)> encode_jpeg;
  std::function<void(const Image& from, int width, int height, Image& to)> resize_image;

  // Called after every sample, one call at a time. What it throws stops the conversion.
  std::function<void(int64_t done, int64_t total)> progress;
};

struct ConvertResult {
  int64_t samples = 0;  // written, in this and earlier runs
  int64_t bytes = 0;
  int parts = 0;
  int resumed_parts = 0;             // of them finished by an earlier run
  std::vector<std::string> skipped;  // why each sample that is missing is, in order
};

// One split of `source`, opened from `source_path`, into the folder `destination`: new, empty, or begun by the same
// conversion. Class names go to classes.txt (OFRecord), the folders' names or CIFAR's own file.
ConvertResult convert(const ImageSource& source, const std::string& source_path, const std::string& destination,
                      const ConvertOptions& options);

}  // namespace millrace::data
