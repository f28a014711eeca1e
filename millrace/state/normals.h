// Many standard normals at once. The same numbers as normal() in base/random.h to within float rounding, but from
// short polynomials instead of the C library's functions: several times faster, and the same on every machine.
#pragma once

#include <cstdint>
#include <span>

#include "millrace/base/random.h"

namespace millrace::state {

// out[4 * i .. 4 * i + 3] = scale * the normals of block first_block + i of the stream; the last block may be cut.
void fill_normals(const RandomStream& stream, uint64_t first_block, float scale, std::span<float> out);

}  // namespace millrace::state
