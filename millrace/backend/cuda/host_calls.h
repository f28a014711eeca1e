// Small kernels that are called from outside the tasks.
#pragma once

#include "millrace/backend/cuda/device.h"

namespace millrace::backend::cuda {

void set_context(const Device& device, const StepContext& context);
void add_floats(const Device& device, float* total, const float* part, size_t count);
void scale_floats(const Device& device, float* values, size_t count, float factor);

// own = the members' values, added in their order. Those of the others lie one after another, `pitch` apart.
void add_in_order(const Device& device, float* own, size_t count, int member, const float* others, size_t pitch,
                  int members);

// Numbers as training has them, for measuring: zeros run faster than they should.
void fill_random(const Device& device, void* memory, int64_t elements, DType dtype);

}  // namespace millrace::backend::cuda
