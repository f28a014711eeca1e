// Sets of pictures for tests of files, made byte by byte without the code under test.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/random.h"
#include "millrace/data/files/image_source.h"
#include "state/temporary_folder.h"

namespace millrace::data {

struct Picture {
  int32_t label = 0;
  std::string bytes;
  bool operator==(const Picture&) const = default;
};

class StoredSets : public state::TemporaryFolder {
 protected:
  static std::string noise(uint64_t key, size_t size) {
    const RandomStream stream(key, 0, 0);
    std::string bytes(size, '\0');
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(stream.at(i / 16)[i / 4 % 4] >> (8 * (i % 4)));
    return bytes;
  }
  // Begins as a JPEG file does.
  static std::string fake_jpeg(uint64_t key, size_t size) { return "\xFF\xD8\xFF\xE0" + noise(key, size); }
  static std::string fake_png(uint64_t key, size_t size) { return "\x89PNG\r\n\x1A\n" + noise(key, size); }

  static std::string varint(uint64_t value) {
    std::string bytes;
    for (; value >= 128; value >>= 7) bytes += static_cast<char>(value | 128);
    return bytes + static_cast<char>(value);
  }
  // A field of the protobuf wire format that has a length.
  static std::string field(int number, const std::string& content) {
    return varint(static_cast<uint64_t>(number) * 8 + 2) + varint(content.size()) + content;
  }
  static std::string entry(const std::string& key, const std::string& feature) {
    return field(1, field(1, key) + field(2, feature));
  }
  static std::string label_entry(int64_t label) {
    return entry("class/label", field(4, field(1, varint(static_cast<uint64_t>(label)))));
  }
  static std::string image_entry(const std::string& bytes) { return entry("encoded", field(1, field(1, bytes))); }
  static std::string record(const Picture& picture) { return label_entry(picture.label) + image_entry(picture.bytes); }

  static std::string length(int64_t value) {
    std::string bytes;
    for (int i = 0; i < 8; ++i) bytes += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i));
    return bytes;
  }
  // As it stands in a file.
  static std::string framed(const std::string& record) { return length(static_cast<int64_t>(record.size())) + record; }
  static std::string framed(const std::vector<Picture>& pictures) {
    std::string bytes;
    for (const Picture& picture : pictures) bytes += framed(record(picture));
    return bytes;
  }

  static std::vector<Picture> some_pictures(int count, int classes, uint64_t key = 1) {
    std::vector<Picture> pictures;
    for (int i = 0; i < count; ++i) {
      pictures.push_back({i * 7 % classes, fake_jpeg(key * 1000 + static_cast<uint64_t>(i), 40 + i * 37 % 400)});
    }
    return pictures;
  }

  // One CIFAR record: label bytes, then planes.
  static std::string cifar_record(const std::vector<int>& labels, uint64_t key) {
    std::string bytes;
    for (const int label : labels) bytes += static_cast<char>(label);
    return bytes + noise(key, 3072);
  }

  std::string make_folder(const std::string& name) const {
    std::filesystem::create_directories(path(name));
    return path(name);
  }

  static Picture read(const ImageSource& source, int64_t sample) {
    StoredImage image;
    source.read(sample, image);
    return {image.label, std::string(image.bytes.begin(), image.bytes.end())};
  }
  static std::vector<Picture> read_all(const ImageSource& source) {
    std::vector<Picture> pictures;
    for (int64_t sample = 0; sample < source.size(); ++sample) pictures.push_back(read(source, sample));
    return pictures;
  }

  // Every file below a folder with its bytes.
  static std::vector<std::pair<std::string, std::string>> contents(const std::string& folder) {
    std::vector<std::pair<std::string, std::string>> files;
    for (const auto& entry_ : std::filesystem::recursive_directory_iterator(folder)) {
      if (!entry_.is_regular_file()) continue;
      files.emplace_back(std::filesystem::relative(entry_.path(), folder).string(), read_bytes(entry_.path().string()));
    }
    std::sort(files.begin(), files.end());
    return files;
  }
};

// The message of what `action` throws of this type; fails the test where it throws nothing of it.
template <typename Error, typename Action>
std::string message_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another kind of error: " << error.what();
    return {};
  }
  ADD_FAILURE() << "no error";
  return {};
}

}  // namespace millrace::data
