// Where the rows of a value begin. A matrix product is several times slower, and a row cannot be read in vectors, where
// rows do not begin at multiples of 16 bytes; but there may be any number of classes (GPT-2 has 50257). So the logits
// that a linear layer makes for the loss, and the gradient that comes back, have room behind each row: zeros in the
// gradient, anything in the logits. Products are also slow over an odd number of columns, so a weight has rows of zeros
// behind its own, as many as there is room.
#pragma once

#include "millrace/backend/cuda/device.h"

namespace millrace::backend::cuda {

// Elements from one row (of the last axis) to the next; the width of the value where there is no room.
int64_t row_pitch(const graph::Program& program, graph::BufferId buffer);

// Elements a buffer takes with its padding, whatever kind it is.
int64_t stored_elements(const graph::Program& program, graph::BufferId buffer);

}  // namespace millrace::backend::cuda
