// Whether the GPU there is is the one that stands in for one (emulated_device.cpp).
#pragma once

#include "millrace/backend/cuda/cuda_backend.h"

namespace millrace::device {

inline bool is_emulated() {
  return backend::cuda_device_count() > 0 && backend::cuda_device_name(0) == "emulated device";
}

}  // namespace millrace::device
