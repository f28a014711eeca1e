#include "millrace/backend/cpu/winograd.h"

namespace millrace::backend::cpu {

std::vector<Kernel> winograd_kernels(const ConvProblem& problem, const Desc& weight) {
  const graph::Window& w = problem.attrs.window;
  if (w.dilation_h != 1 || w.dilation_w != 1 || problem.attrs.groups != 1 || w.kernel_h != w.kernel_w) return {};
  if (!has_own_layout(weight)) return {};
  if (w.stride_h == 2 && w.stride_w == 2 && w.kernel_h == 3 && w.pad_h == 1 && w.pad_w == 1 && !problem.attrs.bias &&
      !problem.relu) {
    return winograd::strided_kernels(problem);
  }
  if (w.stride_h != 1 || w.stride_w != 1) return {};
  if (w.kernel_h != 3 && w.kernel_h != 5) return {};
  if (w.pad_h >= w.kernel_h || w.pad_w >= w.kernel_w) return {};
  if (problem.pass == graph::Pass::WeightGrad) return winograd::weight_gradient_kernels(problem);
  return winograd::convolution_kernels(problem, problem.pass == graph::Pass::InputGrad);
}

}  // namespace millrace::backend::cpu
