// Where the records of an OFRecord file stand: found by stepping from length to length, without reading what is
// between. Eight bytes of memory a record.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/data/files/file_pool.h"

namespace millrace::data {

// As large as a protobuf message can be.
constexpr int64_t kMaxRecordBytes = INT32_MAX;
constexpr int64_t kLengthBytes = 8;

struct RecordIndex {
  std::vector<int64_t> starts;  // of each whole record's length, and the end of the last
  std::string damage;           // why the rest of the file holds no record that can be found; empty: all is well
  int64_t lost_bytes = 0;       // of that rest

  int64_t records() const { return static_cast<int64_t>(starts.size()) - 1; }
};

RecordIndex index_records(const OpenFile& file);

}  // namespace millrace::data
