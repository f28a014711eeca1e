// The ways pictures are stored that can be read and converted to each other.
#pragma once

#include <array>
#include <optional>
#include <string_view>

namespace millrace::data {

enum class ImageKind { OfRecord, ImageFolder, Cifar10, Cifar100 };

constexpr std::array kImageKinds{ImageKind::OfRecord, ImageKind::ImageFolder, ImageKind::Cifar10, ImageKind::Cifar100};

// As written in a job and on the command line.
constexpr const char* name_of(ImageKind kind) {
  switch (kind) {
    case ImageKind::OfRecord: return "ofrecord";
    case ImageKind::ImageFolder: return "image_folder";
    case ImageKind::Cifar10: return "cifar10";
    case ImageKind::Cifar100: return "cifar100";
  }
  return "?";
}

inline std::optional<ImageKind> kind_named(std::string_view name) {
  for (const ImageKind kind : kImageKinds) {
    if (name == name_of(kind)) return kind;
  }
  return std::nullopt;
}

}  // namespace millrace::data
