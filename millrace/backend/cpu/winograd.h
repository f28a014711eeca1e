// Our own Winograd convolution, for 3 x 3 and 5 x 5 filters of stride 1, where oneDNN's (3 x 3 only) writes whole
// transformed tensors. What is kept in the cache decides its speed, so there are two orders of the same work:
//   winograd_blocks  a block of tiles at a time, with all filters transformed before
//   winograd_panels  a panel of output channels at a time, with all tiles transformed before
// The first suits large images, the second small ones with many channels; which is faster is measured.
// 3 x 3 filters of stride 2 and padding 1 are cut into filters of stride 1 (winograd_phases.h):
//   winograd_phases  a block of tiles at a time; the weight gradient a panel of output channels at a time
#pragma once

#include <vector>

#include "millrace/backend/cpu/conv_problem.h"

namespace millrace::backend::cpu {

// None where the shape or the layout of the weights (conv_problem.h) does not fit.
std::vector<Kernel> winograd_kernels(const ConvProblem& problem, const Desc& weight);

namespace winograd {
// Forward, or with `turned` filters the input gradient.
std::vector<Kernel> convolution_kernels(const ConvProblem& problem, bool turned);
std::vector<Kernel> weight_gradient_kernels(const ConvProblem& problem);
// All passes of stride 2.
std::vector<Kernel> strided_kernels(const ConvProblem& problem);
}  // namespace winograd

}  // namespace millrace::backend::cpu
