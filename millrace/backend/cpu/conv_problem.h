// A pass of a convolution, as our own kernels are asked for it.
#pragma once

#include "millrace/backend/backend.h"
#include "millrace/backend/cpu/blocked.h"
#include "millrace/backend/cpu/onednn.h"

namespace millrace::backend::cpu {

struct ConvProblem {
  graph::Pass pass;
  Shape x, y;
  graph::Conv2dAttrs attrs;
  bool relu;  // forward only
};

// The layout of weights that our kernels read: w[o block][i block][tap][i][o].
inline bool has_own_layout(const Desc& weight) {
  const Tag tag = kBlock == 16 ? Tag::OIhw16i16o : Tag::OIhw8i8o;
  return weight == Desc(weight.dims(), dnnl::memory::data_type::f32, tag);
}

}  // namespace millrace::backend::cpu
