// Our own Winograd convolution, for 3 x 3 and 5 x 5 filters of stride 1. It works through blocks of tiles small
// enough that transformed input and output of a block stay in the cache, where oneDNN's (3 x 3 only) writes whole
// transformed tensors; which is faster depends on the layer and is measured.
#pragma once

#include <optional>

#include "millrace/backend/backend.h"
#include "millrace/backend/cpu/onednn.h"

namespace millrace::backend::cpu {

struct WinogradProblem {
  graph::Pass pass;
  Shape x, y;
  graph::Conv2dAttrs attrs;
  bool relu;  // forward only
};

// Nothing where the shape or the layout of the weights (OIhw16i16o, or its 8-channel form) does not fit.
std::optional<Kernel> winograd_kernel(const WinogradProblem& problem, const Desc& weight);

}  // namespace millrace::backend::cpu
