// Images as they are stored, by number: what a file format gives before anything is decoded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::data {

// One image out of a file. `bytes` is reused from read to read.
struct StoredImage {
  std::vector<uint8_t> bytes;  // a JPEG or PNG file, told apart by its first bytes; or planes of raw pixels
  int raw_size = 0;            // not 0: raw planes (red, green, blue) of raw_size x raw_size
  int32_t label = 0;
};

class ImageSource {
 public:
  virtual ~ImageSource() = default;

  virtual int64_t size() const = 0;

  // Safe to call from several threads. Throws BadSample, with file and record, where the record is unusable.
  virtual void read(int64_t sample, StoredImage& into) const = 0;

  // Where a sample stands, for messages: "train/part-00003: record 17".
  virtual std::string place(int64_t sample) const = 0;

  // One more than the highest label the format can promise before all is read; 0: unknown.
  virtual int classes() const { return 0; }

  // By label; empty where the format has no names.
  virtual std::vector<std::string> class_names() const { return {}; }

  // Of all files; may have to look at each of them. 0: unknown.
  virtual int64_t stored_bytes() const { return 0; }

  // Tells the set from another by the names of its files and what is known of their contents; 0: unknown.
  virtual uint64_t fingerprint() const { return 0; }
};

}  // namespace millrace::data
