// Places of a vision transformer for another image size, as Hugging Face and timm make them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace millrace::state {

// The side of the grid in a table of so many places, the first of which is the class token's; 0: they are no square.
int64_t grid_side(int64_t places);

// From one place for the class token and from x from of a grid to the same with to x to, each of `width` values. The
// class token's is kept; the grid is resized like torch's interpolate(mode="bicubic", align_corners=False).
std::vector<float> resize_position_grid(std::span<const float> table, int64_t width, int64_t from, int64_t to);

}  // namespace millrace::state
