// A whole picture at another size, for looking at and for storing; training resizes in resample.h.
#pragma once

#include "millrace/data/image/image.h"

namespace millrace::data {

void resize_picture(const Image& from, int width, int height, Image& to);

}  // namespace millrace::data
