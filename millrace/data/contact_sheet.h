// One picture of many: a row for each sample, first as it is stored, then as training epochs see it.
#pragma once

#include <cstdint>
#include <span>

#include "millrace/data/files/image_source.h"
#include "millrace/data/image/image.h"
#include "millrace/data/image/transform.h"

namespace millrace::data {

struct SheetOptions {
  int cell = 160;  // pixels of a picture's longer side
  int epochs = 5;  // pictures after the transform
  int channels = 3;
  job::Color color = job::Color::Convert;
};

// A sample that cannot be used leaves its row empty.
Image contact_sheet(const ImageSource& source, std::span<const int64_t> samples, const ImageTransform& transform,
                    const SheetOptions& options);

}  // namespace millrace::data
