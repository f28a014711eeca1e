// Header, then layout; each is checked whole before the next is looked at.
#include "millrace/state/safetensors_layout.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "millrace/base/error.h"

namespace millrace::state {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "numbers are copied as they lie in the file");

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kLargestHeader = 100'000'000;
constexpr size_t kLongestName = 1000;  // names stand in messages

// Bytes of an element; 0 for a type that the format does not have.
uint64_t element_bytes(const std::string& dtype) {
  static const std::map<std::string, uint64_t> sizes = {
      {"F64", 8}, {"I64", 8},  {"U64", 8},     {"F32", 4},     {"I32", 4}, {"U32", 4}, {"F16", 2}, {"I16", 2},
      {"U16", 2}, {"BF16", 2}, {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"I8", 1},  {"U8", 1},  {"BOOL", 1}};
  const auto found = sizes.find(dtype);
  return found == sizes.end() ? 0 : found->second;
}

json parse_header(const std::string& text, const std::string& path) {
  constexpr int kDeepest = 4;         // {name: {shape: [n]}} has 3 levels
  std::set<std::string> names, keys;  // of the header, and of the entry that is being read
  std::string entry;
  const auto check = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kDeepest) fail_input("{}: the header is nested too deeply; not a safetensors file", path);
    if (event != json::parse_event_t::key) return true;
    const auto& name = value.get_ref<const std::string&>();
    if (depth == 1) {
      if (!names.insert(name).second) fail_input("{}: tensor {} is listed twice", path, shown(name));
      entry = name;
      keys.clear();
    } else if (depth == 2 && !keys.insert(name).second) {
      fail_input("{}: tensor {}: its header entry has {} twice", path, shown(entry), shown(name));
    }
    return true;
  };
  json header;
  try {
    header = json::parse(text, check);
  } catch (const json::exception& error) {
    const auto* parse_error = dynamic_cast<const json::parse_error*>(&error);
    fail_input("{}: the header is not valid JSON at byte {}; not a safetensors file, or damaged", path,
               kLengthBytes + (parse_error ? parse_error->byte : 0));
  }
  if (!header.is_object()) fail_input("{}: the header is not a JSON object; not a safetensors file", path);
  return header;
}

TensorEntry parse_entry(const std::string& name, const json& value, const std::string& path) {
  const auto fail = [&](const std::string& what) { fail_input("{}: tensor {}: {}", path, shown(name), what); };
  const bool odd = std::any_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20; });
  if (odd || name.size() > kLongestName) fail("its name is too long or holds control characters");
  if (!value.is_object()) fail("its header entry is not an object");
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!value.contains(key)) fail(fmt::format("its header entry has no {}", key));
  }
  TensorEntry entry{.name = name, .dtype = {}, .shape = {}};
  if (!value["dtype"].is_string()) fail("its dtype is not a text");
  entry.dtype = value["dtype"].get<std::string>();
  const uint64_t bytes_each = element_bytes(entry.dtype);
  if (bytes_each == 0) fail(fmt::format("unknown dtype {}", shown(entry.dtype)));

  const json& shape = value["shape"];
  if (!shape.is_array()) fail("its shape is not a list");
  if (shape.size() > Shape::kMaxRank)
    fail(fmt::format("it has {} axes, at most {} can be read", shape.size(), Shape::kMaxRank));
  uint64_t bytes = bytes_each;
  bool overflow = false, empty = false;
  for (const json& extent : shape) {
    if (!extent.is_number_unsigned()) fail("an extent of its shape is not a whole number of at least 0");
    const auto count = extent.get<uint64_t>();
    overflow |= count > static_cast<uint64_t>(INT64_MAX);
    empty |= count == 0;
    if (!empty) overflow |= __builtin_mul_overflow(bytes, count, &bytes) || bytes > static_cast<uint64_t>(INT64_MAX);
    if (!overflow) entry.shape.append(static_cast<int64_t>(count));
  }
  if (overflow) fail("its shape is larger than any memory");
  if (empty) bytes = 0;

  const json& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    fail("its data_offsets are not two whole numbers of at least 0");
  }
  entry.begin = offsets[0].get<uint64_t>();
  entry.end = offsets[1].get<uint64_t>();
  if (entry.end < entry.begin) fail(fmt::format("its data_offsets {} and {} are out of order", entry.begin, entry.end));
  if (entry.end - entry.begin != bytes) {
    fail(fmt::format("its data_offsets hold {} bytes, its shape {} of {} needs {}", entry.end - entry.begin,
                     entry.shape.str(), entry.dtype, bytes));
  }
  return entry;
}

// Sorts the entries by place and checks that they cover the data, each byte once.
void check_layout(std::vector<TensorEntry>& entries, uint64_t data_bytes, const std::string& path) {
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t covered = 0;
  for (const TensorEntry& entry : entries) {
    if (entry.end > data_bytes) {
      fail_input("{}: tensor {}: its data ends at byte {} of {}; the file is cut off or damaged", path,
                 shown(entry.name), entry.end, data_bytes);
    }
    if (entry.begin < covered) fail_input("{}: tensor {}: its data overlaps another's", path, shown(entry.name));
    if (entry.begin > covered) {
      fail_input("{}: tensor {}: {} unused bytes lie before its data", path, shown(entry.name), entry.begin - covered);
    }
    covered = entry.end;
  }
  if (covered != data_bytes) fail_input("{}: {} unused bytes lie after the last tensor", path, data_bytes - covered);
}

}  // namespace

std::string shown(const std::string& name) {
  constexpr size_t kLongest = 100;
  std::string out;
  for (char c : name.substr(0, kLongest)) out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  return "\"" + out + (name.size() > kLongest ? "...\"" : "\"");
}

TensorLayout take_layout(const TakeBytes& take, uint64_t file_bytes, const std::string& path) {
  uint64_t header_bytes = 0;
  if (file_bytes < kLengthBytes) fail_input("{}: {} bytes are too few for a safetensors file", path, file_bytes);
  take(&header_bytes, kLengthBytes);
  if (header_bytes > kLargestHeader || header_bytes > file_bytes - kLengthBytes) {
    fail_input("{}: a header of {} bytes in a file of {}; not a safetensors file, or damaged", path, header_bytes,
               file_bytes);
  }
  std::string text(header_bytes, '\0');
  take(text.data(), text.size());

  TensorLayout layout;
  const json header = parse_header(text, path);
  for (const auto& [name, value] : header.items()) {
    if (name != "__metadata__") {
      layout.entries.push_back(parse_entry(name, value, path));
      continue;
    }
    if (!value.is_object()) fail_input("{}: the header's __metadata__ is not an object", path);
    for (const auto& [key, entry] : value.items()) {
      if (!entry.is_string()) fail_input("{}: the header's __metadata__ {} is not a text", path, shown(key));
      layout.metadata[key] = entry.get<std::string>();
    }
  }
  check_layout(layout.entries, file_bytes - kLengthBytes - header_bytes, path);
  return layout;
}

}  // namespace millrace::state
