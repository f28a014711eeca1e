// Which elements dropout keeps: a rule of (seed, operator, step, row of the step's batch, element of that row in
// plain NCHW order) alone, so that every backend, layout and partition draws the same mask.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

#include "millrace/backend/backend.h"
#include "millrace/base/random.h"

namespace millrace::backend {

class DropoutMask {
 public:
  DropoutMask(std::string_view op_name, double probability)
      : purpose_(hash_name(op_name)),
        threshold_(static_cast<uint32_t>(std::ceil(probability * 0x1p24))),
        scale_(1.0 / (1.0 - probability)) {}

  // The numbers of row `row` of the micro-batch; element e has word at(e / 4)[e % 4].
  RandomStream row(const StepContext& context, int64_t row) const {
    return {RandomStream::mix(context.seed, purpose_), static_cast<uint64_t>(context.step),
            static_cast<uint64_t>(context.first_row + row)};
  }

  // uniform(word) >= probability, in integers: uniform has 24 bits, so the two agree exactly.
  bool keeps(uint32_t word) const { return (word >> 8) >= threshold_; }

  // What a kept element is multiplied by. Infinite at probability 1, where nothing is kept: select, do not multiply.
  double scale() const { return scale_; }

 private:
  uint64_t purpose_;
  uint32_t threshold_;
  double scale_;
};

}  // namespace millrace::backend
