// The CPU backend: convolutions and matrix products from oneDNN, the memory-bound operators by hand on the
// same blocked layout.
//
// Layouts. Activations of four axes are stored in channel blocks (nChw16c, or nChw8c without AVX-512), channels
// padded with zeros that every kernel preserves; network input and everything of two axes is plain. Convolution
// weights stand in the layout the direct forward kernel wants; other passes reorder them in their scratch where
// they want another, and that reorder is part of what is measured when an algorithm is chosen.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "millrace/backend/optimizer.h"

namespace millrace::backend {

// Auto measures all algorithms there are for a convolution, oneDNN's and our own (winograd.h, matrix_conv.h), and keeps
// the fastest. Direct keeps to those that multiply as the definition does. The others take one wherever it exists.
enum class Convolution { Auto, Direct, Winograd, WinogradBlocks, WinogradPanels, WinogradPhases, Product, Strassen };

struct CpuOptions {
  int threads = 0;  // 0: all cores
  Convolution convolution = Convolution::Auto;
  std::string choices_file = {};  // measured choices are kept here between runs; empty: measured each time
  std::function<void(const std::string& work)> on_measure = {};  // called before candidates for `work` are measured
};

// Throws std::invalid_argument, saying what to install, where oneDNN is not built in.
std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options, const OptimizerOptions& sgd);

// Multiply-add rate of all threads together on data in registers: the machine's peak, measured.
double measure_peak_gflops(int threads);

}  // namespace millrace::backend
