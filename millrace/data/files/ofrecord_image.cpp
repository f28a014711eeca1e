#include "millrace/data/files/ofrecord_image.h"

#include <cstring>
#include <string_view>

#include "millrace/data/bad_sample.h"
#include "ofrecord.pb.h"

namespace millrace::data {
namespace {

// Tags: field number * 8 + wire type. Here all numbers are below 16, so a tag is one byte.
constexpr uint8_t kDelimited1 = 0x0A;  // OFRecord.feature, an entry's key, every list's value (packed)
constexpr uint8_t kDelimited2 = 0x12;  // an entry's value
constexpr uint8_t kBytesList = 0x0A, kFloatList = 0x12, kDoubleList = 0x1A, kInt32List = 0x22, kInt64List = 0x2A;
constexpr uint8_t kVarint1 = 0x08;  // a list's value, not packed

// Reads from the front. Whatever does not fit makes it fail for good, so that one look at the end is enough.
class Walk {
 public:
  explicit Walk(std::span<const uint8_t> bytes) : rest_(bytes) {}

  bool done() const { return rest_.empty(); }
  bool failed() const { return failed_; }

  bool take_tag(uint8_t tag) {
    if (rest_.empty() || rest_[0] != tag) return false;
    rest_ = rest_.subspan(1);
    return true;
  }
  void expect_tag(uint8_t tag) {
    if (!take_tag(tag)) fail();
  }
  uint64_t varint(size_t most_bytes = 10) {
    uint64_t value = 0;
    for (size_t i = 0; i < most_bytes && i < rest_.size(); ++i) {
      value |= static_cast<uint64_t>(rest_[i] & 0x7F) << (7 * i);
      if (rest_[i] < 0x80) {
        rest_ = rest_.subspan(i + 1);
        return value;
      }
    }
    fail();
    return 0;
  }
  std::span<const uint8_t> delimited() {
    const uint64_t size = varint(5);  // libprotobuf takes no longer ones
    if (size > rest_.size()) fail();
    if (failed_) return {};
    const auto inside = rest_.subspan(0, size);
    rest_ = rest_.subspan(size);
    return inside;
  }
  void fail() {
    failed_ = true;
    rest_ = {};
  }

 private:
  std::span<const uint8_t> rest_;
  bool failed_ = false;
};

bool equal(std::span<const uint8_t> bytes, std::string_view text) {
  return bytes.size() == text.size() && std::memcmp(bytes.data(), text.data(), text.size()) == 0;
}

// A Feature with one list of one value. False: something else.
bool read_bytes(std::span<const uint8_t> feature, std::span<const uint8_t>& value) {
  Walk outer(feature);
  outer.expect_tag(kBytesList);
  Walk list(outer.delimited());
  list.expect_tag(kDelimited1);
  value = list.delimited();
  return outer.done() && list.done() && !outer.failed() && !list.failed();
}

bool read_label(std::span<const uint8_t> feature, int64_t& value) {
  Walk outer(feature);
  const bool narrow = outer.take_tag(kInt32List);
  if (!narrow) outer.expect_tag(kInt64List);
  Walk list(outer.delimited());
  uint64_t bits = 0;
  if (list.take_tag(kVarint1)) {
    bits = list.varint();
  } else {
    list.expect_tag(kDelimited1);
    Walk packed(list.delimited());
    bits = packed.varint();
    if (!packed.done() || packed.failed()) return false;
  }
  value = narrow ? static_cast<int32_t>(bits) : static_cast<int64_t>(bits);
  return outer.done() && list.done() && !outer.failed() && !list.failed();
}

// A Feature of any kind that is no concern of ours but has to be sound for the record to be.
bool is_sound(std::span<const uint8_t> feature) {
  if (feature.empty()) return true;
  Walk outer(feature);
  const uint8_t kind = feature[0];
  outer.expect_tag(kind);
  Walk list(outer.delimited());
  while (!list.done()) {
    list.expect_tag(kDelimited1);
    const auto values = list.delimited();
    switch (kind) {
      case kBytesList: break;
      case kFloatList:
        if (values.size() % 4 != 0) return false;
        break;
      case kDoubleList:
        if (values.size() % 8 != 0) return false;
        break;
      case kInt32List:
      case kInt64List: {
        Walk packed(values);
        while (!packed.done()) packed.varint();
        if (packed.failed()) return false;
        break;
      }
      default: return false;
    }
  }
  return outer.done() && !outer.failed() && !list.failed() && kind <= kInt64List && kind % 8 == 2;
}

const char* name_of(ofrecord::Feature::KindCase kind) {
  switch (kind) {
    case ofrecord::Feature::kBytesList: return "bytes_list";
    case ofrecord::Feature::kFloatList: return "float_list";
    case ofrecord::Feature::kDoubleList: return "double_list";
    case ofrecord::Feature::kInt32List: return "int32_list";
    case ofrecord::Feature::kInt64List: return "int64_list";
    case ofrecord::Feature::KIND_NOT_SET: break;
  }
  return "nothing";
}

ofrecord::Feature& feature_of(ofrecord::OFRecord& record, const char* key) {
  const auto found = record.mutable_feature()->find(key);
  if (found == record.mutable_feature()->end()) {
    fail_sample("no key \"{}\"; a record needs \"encoded\" and \"class/label\", this one has {} keys", key,
                record.feature().size());
  }
  return found->second;
}

void expect_one(const char* key, int values) {
  if (values != 1) fail_sample("\"{}\" holds {} values, 1 is needed", key, values);
}

int64_t label_of(ofrecord::OFRecord& record) {
  constexpr const char* kKey = "class/label";
  const ofrecord::Feature& label = feature_of(record, kKey);
  if (label.has_int32_list()) {
    expect_one(kKey, label.int32_list().value_size());
    return label.int32_list().value(0);
  }
  if (!label.has_int64_list()) {
    fail_sample("\"{}\" is {}; write an int32_list or int64_list", kKey, name_of(label.kind_case()));
  }
  expect_one(kKey, label.int64_list().value_size());
  return label.int64_list().value(0);
}

void expect_bytes(size_t size) {
  if (size == 0) fail_sample("\"encoded\" is empty; write a JPEG or PNG file's bytes");
}

}  // namespace

std::optional<RecordPicture> find_picture(std::span<const uint8_t> record) {
  bool has_image = false, has_label = false;
  RecordPicture picture;
  Walk entries(record);
  while (!entries.done()) {
    entries.expect_tag(kDelimited1);
    Walk entry(entries.delimited());
    entry.expect_tag(kDelimited1);
    const auto key = entry.delimited();
    entry.expect_tag(kDelimited2);
    const auto feature = entry.delimited();
    if (entries.failed() || entry.failed() || !entry.done()) return std::nullopt;
    if (equal(key, "encoded")) {
      std::span<const uint8_t> value;
      if (has_image || !read_bytes(feature, value)) return std::nullopt;
      picture.begin = static_cast<size_t>(value.data() - record.data());
      picture.size = value.size();
      has_image = true;
    } else if (equal(key, "class/label")) {
      if (has_label || !read_label(feature, picture.label)) return std::nullopt;
      has_label = true;
    } else if (!is_sound(feature)) {
      return std::nullopt;
    }
  }
  return has_image && has_label ? std::optional(picture) : std::nullopt;
}

int64_t take_picture(std::vector<uint8_t>& bytes) {
  const auto found = find_picture(bytes);
  if (!found) return take_picture_by_protobuf(bytes);
  expect_bytes(found->size);
  std::memmove(bytes.data(), bytes.data() + found->begin, found->size);
  bytes.resize(found->size);
  return found->label;
}

int64_t take_picture_by_protobuf(std::vector<uint8_t>& bytes) {
  ofrecord::OFRecord record;
  if (!record.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    fail_sample("its {} bytes are not an OFRecord; the file is damaged or of another format", bytes.size());
  }
  const int64_t label = label_of(record);
  const ofrecord::Feature& image = feature_of(record, "encoded");
  if (!image.has_bytes_list()) {
    fail_sample("\"encoded\" is {}; write a bytes_list", name_of(image.kind_case()));
  }
  expect_one("encoded", image.bytes_list().value_size());
  const std::string& value = image.bytes_list().value(0);
  expect_bytes(value.size());
  bytes.assign(value.begin(), value.end());
  return label;
}

}  // namespace millrace::data
