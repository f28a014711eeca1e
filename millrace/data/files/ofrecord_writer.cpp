#include "millrace/data/files/ofrecord_writer.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include "millrace/base/error.h"
#include "millrace/data/files/ofrecord_index.h"
#include "ofrecord.pb.h"

namespace millrace::data {
namespace {

namespace io = google::protobuf::io;

// A map has no order of its own; deterministic means sorted by key.
void serialize(const ofrecord::OFRecord& message, std::string& into) {
  into.clear();
  io::StringOutputStream stream(&into);
  io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  message.SerializeToCodedStream(&coded);
}

}  // namespace

struct OfRecordWriter::Record {
  ofrecord::OFRecord message;
  std::string bytes;
};

OfRecordWriter::OfRecordWriter(const std::string& path) : file_(path), record_(std::make_unique<Record>()) {
  auto& features = *record_->message.mutable_feature();
  features["encoded"].mutable_bytes_list()->add_value();
  features["class/label"].mutable_int32_list()->add_value(0);
}

OfRecordWriter::~OfRecordWriter() = default;

void OfRecordWriter::add(std::span<const uint8_t> encoded, int32_t label) {
  constexpr size_t kMost = kMaxRecordBytes - 1024;  // the keys need some
  if (encoded.size() > kMost) fail_input("a picture of {} bytes; a record holds at most {}", encoded.size(), kMost);
  auto& features = *record_->message.mutable_feature();
  features["encoded"].mutable_bytes_list()->mutable_value(0)->assign(encoded.begin(), encoded.end());
  features["class/label"].mutable_int32_list()->set_value(0, label);
  serialize(record_->message, record_->bytes);

  uint8_t length[kLengthBytes];
  for (size_t i = 0; i < sizeof length; ++i) length[i] = static_cast<uint8_t>(record_->bytes.size() >> (8 * i));
  file_.write(length);
  file_.write(record_->bytes);
  ++records_;
}

void OfRecordWriter::finish() { file_.put_in_place(); }

}  // namespace millrace::data
