#include "millrace/data/image_dataset.h"

#include <algorithm>
#include <array>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/data/bad_sample.h"
#include "millrace/data/files/open_images.h"

namespace millrace::data {
namespace {

constexpr int kCifarSize = 32;

struct Levels {
  std::array<float, 3> mean, std;
};
constexpr Levels kImageNet{{123.68f, 116.779f, 103.939f}, {58.393f, 57.12f, 57.375f}};
constexpr Levels kCifar{{125.307f, 122.950f, 113.865f}, {62.993f, 62.089f, 66.705f}};

bool is_cifar(job::DataKind kind) { return kind == job::DataKind::Cifar10 || kind == job::DataKind::Cifar100; }

ImageKind kind_of(job::DataKind kind) {
  switch (kind) {
    case job::DataKind::ImageFolder: return ImageKind::ImageFolder;
    case job::DataKind::Cifar10: return ImageKind::Cifar10;
    case job::DataKind::Cifar100: return ImageKind::Cifar100;
    default: return ImageKind::OfRecord;
  }
}

// Asked for, or usual; of one channel the mean over all.
std::vector<float> levels(const std::vector<double>& asked, const std::array<float, 3>& usual, int channels) {
  if (!asked.empty()) return {asked.begin(), asked.end()};
  if (channels == 3) return {usual.begin(), usual.end()};
  return std::vector<float>(static_cast<size_t>(channels), (usual[0] + usual[1] + usual[2]) / 3);
}

}  // namespace

class ImageDataset::ImageReader final : public Reader {
 public:
  explicit ImageReader(const ImageDataset& data) : data_(data) {}

  void fill(std::span<const int64_t> samples, int64_t epoch, std::byte* features, int32_t* labels) override {
    auto* image = reinterpret_cast<float*>(features);
    for (const int64_t sample : samples) {
      const bool usable = read(sample, epoch, image, labels != nullptr);
      if (!usable && image) std::fill_n(image, data_.format_.elements(), 0.0f);
      if (labels) *labels++ = usable ? stored_.label : kNoLabel;
      if (image) image += data_.format_.elements();
    }
  }

 private:
  // Whether a sample can be used must not depend on who asks: the stage that reads only labels looks at the picture
  // too where one may be skipped, and it is the one that counts.
  bool read(int64_t sample, int64_t epoch, float* image, bool counts) {
    try {
      data_.source_->read(sample, stored_);
      if (image) {
        data_.transform_.apply(stored_, epoch, sample, scratch_, image);
      } else if (data_.skip_) {
        data_.transform_.check(stored_, scratch_);
      }
      return true;
    } catch (const BadSample& bad) {
      const std::string place = data_.source_->place(sample), why = bad.what();
      const std::string reason = why.starts_with(place) ? why : place + ": " + why;
      if (!data_.skip_) throw BadSample(reason + "; data.on_error: skip leaves such samples out");
      if (counts) data_.skip_->add(reason);
      return false;
    }
  }

  const ImageDataset& data_;
  StoredImage stored_;
  ImageTransform::Scratch scratch_;
};

ImageDataset::ImageDataset(std::unique_ptr<ImageSource> source, ImageTransform transform, const ImageFormat& format,
                           std::unique_ptr<SkipLog> skip)
    : source_(std::move(source)), transform_(std::move(transform)), format_(format), skip_(std::move(skip)) {
  if (skip_) skip_->end_opening();
}

std::unique_ptr<Reader> ImageDataset::reader() const { return std::make_unique<ImageReader>(*this); }

job::Transform resolved_transform(const job::Job& job, Split split) {
  job::Transform transform = split == Split::Train ? job.data.train_transform : job.data.test_transform;
  if (transform.kind != job::TransformKind::Auto) return transform;
  if (is_cifar(job.data.kind)) {
    const bool pads = split == Split::Train && job.model.image_size == kCifarSize;
    transform.kind = pads                    ? job::TransformKind::PadCrop
                     : split == Split::Train ? job::TransformKind::RandomResizedCrop
                                             : job::TransformKind::Resize;
  } else {
    transform.kind = split == Split::Train ? job::TransformKind::RandomResizedCrop : job::TransformKind::CenterCrop;
    // The middle of ImageNet's usual 224 of 256, at any size.
    transform.short_side = (job.model.image_size * 8 + 6) / 7;
  }
  return transform;
}

ImageTransform transform_of(const job::Job& job, Split split) {
  const Levels& usual = is_cifar(job.data.kind) ? kCifar : kImageNet;
  const int channels = job.model.channels;
  return {resolved_transform(job, split),
          job.model.image_size,
          channels,
          levels(job.data.mean, usual.mean, channels),
          levels(job.data.std, usual.std, channels),
          job.data.color,
          sample_key(job.seed, split, "image.transform")};
}

std::unique_ptr<Dataset> open_image_dataset(const job::Job& job, Split split) {
  const bool train = split == Split::Train;
  const ImageFormat format{job.model.channels, job.model.image_size, job.model.classes};
  auto skip = job.data.on_error == job::OnError::Skip ? std::make_unique<SkipLog>() : nullptr;
  auto source =
      open_images(kind_of(job.data.kind), train ? job.data.train : job.data.test, train, format.classes, skip.get());
  if (source->classes() > job.model.classes) {
    fail_input("{} has {} classes and model.classes is {}; write model.classes: {}",
               train ? job.data.train : job.data.test, source->classes(), job.model.classes, source->classes());
  }
  return std::make_unique<ImageDataset>(std::move(source), transform_of(job, split), format, std::move(skip));
}

}  // namespace millrace::data
