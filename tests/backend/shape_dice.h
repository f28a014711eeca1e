// Random shapes and contexts for nodes.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "millrace/backend/backend.h"
#include "millrace/base/random.h"

namespace millrace::backend::harness {

// Draws the same shapes in every run.
class ShapeDice {
 public:
  explicit ShapeDice(uint64_t seed) : random_(seed, 0, 0) {}

  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_.at(next_++)[0] % static_cast<uint64_t>(high - low + 1));
  }
  int small(int low, int high) { return static_cast<int>(between(low, high)); }
  bool coin() { return between(0, 1) == 1; }
  int64_t pick(std::initializer_list<int64_t> from) {
    return from.begin()[between(0, static_cast<int64_t>(from.size()) - 1)];
  }

  // Batch 1 to 5; the rows that are samples may be fewer.
  Shape images(int64_t channels, int64_t smallest, int64_t largest) {
    return {between(1, 5), channels, between(smallest, largest), between(smallest, largest)};
  }
  StepContext context(int64_t batch) {
    const int64_t rows = coin() ? batch : between(1, batch);
    return {.seed = 3,
            .step = between(0, 100),
            .first_row = 4,
            .rows = rows,
            .inverse_samples = 1.0 / static_cast<double>(rows + 1),
            .learning_rate = 0.05f};
  }

 private:
  RandomStream random_;
  uint64_t next_ = 0;
};

}  // namespace millrace::backend::harness
