#include "millrace/data/files/convert_target.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "millrace/base/error.h"
#include "millrace/base/pending_file.h"
#include "millrace/data/bad_sample.h"
#include "millrace/data/files/cifar.h"
#include "millrace/data/files/image_folder.h"
#include "millrace/data/files/listing.h"
#include "millrace/data/files/ofrecord_writer.h"

namespace millrace::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSamplesPerPart = 5000;
constexpr int kMaxParts = 1024;
constexpr int kCifar10Batches = 5;
constexpr int32_t kMaxNumberedClass = 99999;  // five digits, so that the order of names is that of numbers

bool is_jpeg(const std::vector<uint8_t>& bytes) {
  return bytes.size() >= 3 && bytes[0] == 0xFF && bytes[1] == 0xD8 && bytes[2] == 0xFF;
}

bool is_png(const std::vector<uint8_t>& bytes) {
  constexpr uint8_t kMark[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
  return bytes.size() >= sizeof kMark && std::equal(std::begin(kMark), std::end(kMark), bytes.begin());
}

template <typename Function>
void need(const Function& function, const char* what) {
  if (!function) fail_input("this conversion has to {}, and was not told how", what);
}

// Planes to pixels.
void interleave(const StoredImage& raw, Image& into) {
  const auto plane = static_cast<size_t>(raw.raw_size) * static_cast<size_t>(raw.raw_size);
  into.width = into.height = raw.raw_size;
  into.channels = 3;
  into.pixels.resize(3 * plane);
  for (size_t channel = 0; channel < 3; ++channel) {
    for (size_t i = 0; i < plane; ++i) into.pixels[3 * i + channel] = raw.bytes[channel * plane + i];
  }
}

void to_planes(const Image& image, std::vector<uint8_t>& planes) {
  const auto plane = static_cast<size_t>(image.width) * static_cast<size_t>(image.height);
  const auto channels = static_cast<size_t>(image.channels);
  planes.resize(3 * plane);
  for (size_t channel = 0; channel < 3; ++channel) {
    const size_t from = channels == 3 ? channel : 0;  // grey: three times the same
    for (size_t i = 0; i < plane; ++i) planes[channel * plane + i] = image.pixels[i * channels + from];
  }
}

// A picture as a JPEG or PNG file: what is one already stays as it is.
class Encoder {
 public:
  explicit Encoder(const ConvertOptions& options) : options_(options) {}

  const std::vector<uint8_t>& encoded(const StoredImage& picture) {
    if (picture.raw_size == 0) {
      if (!is_jpeg(picture.bytes) && !is_png(picture.bytes)) {
        fail_sample("neither JPEG nor PNG; convert the picture to one of them first");
      }
      return picture.bytes;
    }
    interleave(picture, pixels_);
    if (options_.quality > 0) {
      need(options_.encode_jpeg, "encode JPEG");
      bytes_ = options_.encode_jpeg(pixels_, options_.quality);
    } else {
      need(options_.encode_png, "encode PNG");
      bytes_ = options_.encode_png(pixels_);
    }
    return bytes_;
  }

 private:
  const ConvertOptions& options_;
  Image pixels_;
  std::vector<uint8_t> bytes_;
};

class OfRecordTarget : public Target {
 public:
  OfRecordTarget(const ImageSource& source, std::string folder, const ConvertOptions& options)
      : names_(source.class_names()), folder_(std::move(folder)), options_(options) {}

  std::unique_ptr<TargetPart> begin_part(int part) const override {
    return std::make_unique<Part>(path_of(part), options_);
  }
  bool has_part(int part, int64_t bytes) const override {
    std::error_code missing;
    return static_cast<int64_t>(fs::file_size(path_of(part), missing)) == bytes && !missing;
  }
  void finish() const override {
    if (!names_.empty()) write_class_names((fs::path(folder_) / "classes.txt").string(), names_);
  }

 private:
  class Part : public TargetPart {
   public:
    Part(const std::string& path, const ConvertOptions& options) : writer_(path), encoder_(options) {}
    void add(const StoredImage& picture, int64_t /*position*/) override {
      writer_.add(encoder_.encoded(picture), picture.label);
    }
    void finish() override { writer_.finish(); }
    int64_t bytes() const override { return writer_.bytes(); }

   private:
    OfRecordWriter writer_;
    Encoder encoder_;
  };

  std::string path_of(int part) const { return (fs::path(folder_) / fmt::format("part-{:05}", part)).string(); }

  std::vector<std::string> names_;
  std::string folder_;
  const ConvertOptions& options_;
};

// Labels are read back from the order of the folders, so names are kept only where they are in that order.
std::vector<std::string> folder_names(const ImageSource& source) {
  std::vector<std::string> names = source.class_names();
  for (size_t i = 0; i < names.size(); ++i) {
    const bool sound = !names[i].empty() && names[i].front() != '.' && names[i].find('/') == std::string::npos;
    if (!sound || (i > 0 && names[i] <= names[i - 1])) return {};
  }
  return names;
}

class FolderTarget : public Target {
 public:
  FolderTarget(const ImageSource& source, std::string folder, const ConvertOptions& options)
      : names_(folder_names(source)), classes_(source.classes()), folder_(std::move(folder)), options_(options) {}

  std::unique_ptr<TargetPart> begin_part(int /*part*/) const override { return std::make_unique<Part>(*this); }
  bool has_part(int /*part*/, int64_t /*bytes*/) const override { return true; }  // too many files to look at each
  // Every class needs a folder with pictures: without one those after it would change their numbers.
  void finish() const override {
    for (int64_t label = 0; label < std::max<int64_t>(classes_, highest_numbered() + 1); ++label) {
      const fs::path place = fs::path(folder_) / name_of_class(static_cast<int32_t>(label));
      if (fs::exists(place) && !fs::is_empty(place)) continue;
      fail_input(
          "{}: class {} has no picture, and in image folders the classes after it would change their numbers; convert "
          "to ofrecord instead",
          place.string(), label);
    }
  }

  std::string name_of_class(int32_t label) const {
    if (static_cast<size_t>(label) < names_.size()) return names_[static_cast<size_t>(label)];
    if (!names_.empty()) fail_input("label {}, but only {} classes have names", label, names_.size());
    if (label > kMaxNumberedClass) fail_input("label {}; image folders are numbered to {}", label, kMaxNumberedClass);
    return fmt::format("{:05}", label);
  }
  const std::string& folder() const { return folder_; }
  const ConvertOptions& options() const { return options_; }

 private:
  class Part : public TargetPart {
   public:
    explicit Part(const FolderTarget& target) : target_(target), encoder_(target.options()) {}
    void add(const StoredImage& picture, int64_t position) override {
      const std::vector<uint8_t>& bytes = encoder_.encoded(picture);
      const fs::path folder = fs::path(target_.folder()) / target_.name_of_class(picture.label);
      fs::create_directories(folder);
      PendingFile file((folder / fmt::format("{:09}.{}", position, is_jpeg(bytes) ? "jpg" : "png")).string());
      file.write(bytes);
      file.put_in_place(false);
      bytes_ += file.bytes();
    }
    // All files at once: one by one a sync takes longer than the picture.
    void finish() override {
      const int descriptor = ::open(target_.folder().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      if (descriptor < 0) return;  // only survival of a power cut is unsure
      ::syncfs(descriptor);
      ::close(descriptor);
    }
    int64_t bytes() const override { return bytes_; }

   private:
    const FolderTarget& target_;
    Encoder encoder_;
    int64_t bytes_ = 0;
  };

  int64_t highest_numbered() const {
    int64_t highest = -1;
    for (const std::string& name : class_folders(folder_)) {
      const bool number = std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
      if (names_.empty() && number && name.size() == 5) highest = std::max<int64_t>(highest, std::stoll(name));
    }
    return highest;
  }

  std::vector<std::string> names_;
  int classes_;
  std::string folder_;
  const ConvertOptions& options_;
};

class CifarTarget : public Target {
 public:
  CifarTarget(const ImageSource& source, std::string folder, const ConvertOptions& options)
      : names_(source.class_names()), folder_(std::move(folder)), options_(options) {
    if (source.classes() > num_classes()) {
      fail_input("{} classes, {} holds {}; convert to ofrecord or image_folder instead", source.classes(),
                 name_of(options.to), num_classes());
    }
  }

  std::unique_ptr<TargetPart> begin_part(int part) const override {
    return std::make_unique<Part>(path_of(part), options_);
  }
  bool has_part(int part, int64_t bytes) const override {
    std::error_code missing;
    return static_cast<int64_t>(fs::file_size(path_of(part), missing)) == bytes && !missing;
  }
  // Readers take the names only where there is one for each class.
  void finish() const override {
    std::vector<std::string> names = names_;
    for (int label = static_cast<int>(names.size()); label < num_classes(); ++label) {
      names.push_back(fmt::format("class_{}", label));
    }
    const CifarLabels labels = is_fine() ? CifarLabels::Hundred : CifarLabels::Ten;
    write_class_names((fs::path(folder_) / cifar_names_file(labels)).string(), names);
  }

 private:
  class Part : public TargetPart {
   public:
    Part(const std::string& path, const ConvertOptions& options)
        : options_(options), writer_(path, options.to == ImageKind::Cifar100) {}
    void add(const StoredImage& picture, int64_t /*position*/) override {
      writer_.add(planes_of(picture), picture.label);
    }
    void finish() override { writer_.finish(); }
    int64_t bytes() const override { return writer_.bytes(); }

   private:
    const std::vector<uint8_t>& planes_of(const StoredImage& picture) {
      if (picture.raw_size == kCifarSize) return picture.bytes;
      need(options_.decode, "decode pictures");
      options_.decode(picture, decoded_);
      const Image* image = &decoded_;
      if (image->width != kCifarSize || image->height != kCifarSize) {
        if (!options_.resize) {
          fail_input("the picture is {}x{}, CIFAR holds {}x{}; add --resize, or convert to ofrecord or image_folder",
                     image->width, image->height, kCifarSize, kCifarSize);
        }
        need(options_.resize_image, "resize pictures");
        options_.resize_image(decoded_, kCifarSize, kCifarSize, resized_);
        image = &resized_;
      }
      to_planes(*image, planes_);
      return planes_;
    }

    const ConvertOptions& options_;
    CifarWriter writer_;
    Image decoded_, resized_;
    std::vector<uint8_t> planes_;
  };

  bool is_fine() const { return options_.to == ImageKind::Cifar100; }
  int num_classes() const { return is_fine() ? 100 : 10; }
  std::string path_of(int part) const {
    if (is_fine()) return (fs::path(folder_) / (options_.train ? "train.bin" : "test.bin")).string();
    if (!options_.train) return (fs::path(folder_) / "test_batch.bin").string();
    return (fs::path(folder_) / fmt::format("data_batch_{}.bin", part + 1)).string();
  }

  std::vector<std::string> names_;
  std::string folder_;
  const ConvertOptions& options_;
};

}  // namespace

int parts_for(const ConvertOptions& options, int64_t samples) {
  if (options.to == ImageKind::Cifar10) return options.train ? kCifar10Batches : 1;
  if (options.to == ImageKind::Cifar100) return 1;
  if (options.parts > 0) return options.parts;
  return static_cast<int>(std::clamp<int64_t>((samples + kSamplesPerPart - 1) / kSamplesPerPart, 1, kMaxParts));
}

std::unique_ptr<Target> make_target(const ImageSource& source, const std::string& destination,
                                    const ConvertOptions& options) {
  switch (options.to) {
    case ImageKind::OfRecord: return std::make_unique<OfRecordTarget>(source, destination, options);
    case ImageKind::ImageFolder: return std::make_unique<FolderTarget>(source, destination, options);
    case ImageKind::Cifar10:
    case ImageKind::Cifar100: break;
  }
  return std::make_unique<CifarTarget>(source, destination, options);
}

}  // namespace millrace::data
