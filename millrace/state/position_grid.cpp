#include "millrace/state/position_grid.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>

namespace millrace::state {
namespace {

// What one row or column of the result is made of: four neighbours, those beyond the edge being the edge.
struct Taps {
  std::array<int64_t, 4> places;
  std::array<double, 4> weights;
};

// Keys' cubic convolution with torch's a; the centres of both grids' cells lie over another.
Taps taps_of(int64_t place, int64_t from, int64_t to) {
  constexpr double a = -0.75;
  const double source = (static_cast<double>(place) + 0.5) * static_cast<double>(from) / static_cast<double>(to) - 0.5;
  const double below = std::floor(source), t = source - below;
  const auto near = [](double x) { return ((a + 2) * x - (a + 3)) * x * x + 1; };       // up to 1 away
  const auto far = [](double x) { return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a; };  // 1 to 2 away
  Taps taps{{}, {far(t + 1), near(t), near(1 - t), far(2 - t)}};
  for (int64_t i = 0; i < 4; ++i) {
    taps.places[static_cast<size_t>(i)] = std::clamp<int64_t>(static_cast<int64_t>(below) - 1 + i, 0, from - 1);
  }
  return taps;
}

}  // namespace

int64_t grid_side(int64_t places) {
  if (places < 2) return 0;
  const auto side = static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(places - 1))));
  return side * side == places - 1 ? side : 0;
}

std::vector<float> resize_position_grid(std::span<const float> table, int64_t width, int64_t from, int64_t to) {
  assert(static_cast<int64_t>(table.size()) == (1 + from * from) * width);
  std::vector<float> out(static_cast<size_t>((1 + to * to) * width));
  std::copy_n(table.begin(), width, out.begin());
  const float* grid = table.data() + width;
  float* next = out.data() + width;
  for (int64_t row = 0; row < to; ++row) {
    const Taps rows = taps_of(row, from, to);
    for (int64_t column = 0; column < to; ++column, next += width) {
      const Taps columns = taps_of(column, from, to);
      for (int64_t feature = 0; feature < width; ++feature) {
        double sum = 0;
        for (size_t i = 0; i < 4; ++i) {
          for (size_t j = 0; j < 4; ++j) {
            const int64_t place = rows.places[i] * from + columns.places[j];
            sum += rows.weights[i] * columns.weights[j] * static_cast<double>(grid[place * width + feature]);
          }
        }
        next[feature] = static_cast<float>(sum);
      }
    }
  }
  return out;
}

}  // namespace millrace::state
