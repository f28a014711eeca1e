#include "millrace/data/files/ofrecord_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace millrace::data {
namespace {

int64_t little_endian(const std::array<uint8_t, kLengthBytes>& bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes.size(); ++i) value |= uint64_t{bytes[i]} << (8 * i);
  return static_cast<int64_t>(value);
}

}  // namespace

RecordIndex index_records(const OpenFile& file) {
  RecordIndex index;
  index.starts.push_back(0);
  while (index.damage.empty() && index.starts.back() < file.size()) {
    const int64_t at = index.starts.back();
    std::array<uint8_t, kLengthBytes> header{};
    const auto got = static_cast<int64_t>(file.read_at(at, header.data(), header.size()));
    const int64_t length = little_endian(header);
    const int64_t follow = std::max<int64_t>(file.size() - at - kLengthBytes, 0);
    if (got < kLengthBytes) {
      index.damage = fmt::format("the file ends after {} of the {} bytes of its length", got, kLengthBytes);
    } else if (length < 0) {
      index.damage = fmt::format("its length {} is negative", length);
    } else if (length > kMaxRecordBytes) {
      index.damage = fmt::format("its length {} is more than a record can have, {}", length, kMaxRecordBytes);
    } else if (length > follow) {
      index.damage = fmt::format("its length is {} bytes, the file has {} after it", length, follow);
    } else {
      index.starts.push_back(at + kLengthBytes + length);
    }
  }
  index.lost_bytes = file.size() - index.starts.back();
  if (!index.damage.empty()) {
    index.damage =
        fmt::format("{}: record {} at byte {}: {}", file.path(), index.records(), index.starts.back(), index.damage);
  }
  index.starts.shrink_to_fit();
  return index;
}

}  // namespace millrace::data
