// Writes one part of an OFRecord set, as OneFlow reads it. The same pictures give the same bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "millrace/base/pending_file.h"

namespace millrace::data {

class OfRecordWriter {
 public:
  explicit OfRecordWriter(const std::string& path);
  ~OfRecordWriter();

  void add(std::span<const uint8_t> encoded, int32_t label);
  // The file appears under its name with this, and not without it.
  void finish();

  int64_t records() const { return records_; }
  int64_t bytes() const { return file_.bytes(); }

 private:
  struct Record;  // keeps libprotobuf out of headers

  PendingFile file_;
  std::unique_ptr<Record> record_;
  int64_t records_ = 0;
};

}  // namespace millrace::data
