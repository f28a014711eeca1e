// The picture inside one OFRecord. Records have other keys and other kinds of values too: they are passed over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace millrace::data {

// Where the picture stands in a record.
struct RecordPicture {
  size_t begin = 0;  // of the encoded bytes, within the record
  size_t size = 0;
  int64_t label = 0;
  bool operator==(const RecordPicture&) const = default;
};

// A walk over the wire format that knows only how every writer lays such records out, and gives up (nullopt) on
// anything else, right or wrong: that is for libprotobuf to judge. What it accepts libprotobuf reads the same way.
std::optional<RecordPicture> find_picture(std::span<const uint8_t> record);

// Leaves of a record in `bytes` only its encoded picture, and returns the label. Throws BadSample, without the place.
int64_t take_picture(std::vector<uint8_t>& bytes);

// The same by libprotobuf alone.
int64_t take_picture_by_protobuf(std::vector<uint8_t>& bytes);

}  // namespace millrace::data
