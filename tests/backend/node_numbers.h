// Numbers for what a node reads: random, but such as make sense.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend/one_node.h"
#include "millrace/base/random.h"

namespace millrace::backend::harness {

// Plain row-major numbers by buffer name.
using Plain = std::map<std::string, std::vector<float>>;

// From uniform in [-1, 1) to labels: from -1 (not a sample) to the last class.
inline void to_labels(int64_t classes, std::vector<float>& values) {
  for (float& value : values) value = std::floor((value + 1) / 2 * static_cast<float>(classes + 1)) - 1;
}

// What the loss's forward saves of logits: the logarithm of each row's sum of exponentials.
inline void to_saved_of_logits(const Shape& shape, const std::vector<float>& logits, std::vector<float>& values) {
  const int64_t width = shape.width();
  for (int64_t row = 0; row < shape.rows(); ++row) {
    const std::span<const float> z(logits.data() + row * width, static_cast<size_t>(width));
    const double largest = *std::max_element(z.begin(), z.end());
    double sum = 0;
    for (float logit : z) sum += std::exp(logit - largest);
    values[row] = static_cast<float>(largest);
    values[shape.rows() + row] = static_cast<float>(1 / sum);
  }
}

// Some cell of each window that is not padding.
inline void to_argmax(const graph::Window& window, const Shape& x, const Shape& y, std::vector<float>& values) {
  const int cells = window.kernel_h * window.kernel_w;
  for (int64_t i = 0; i < y.elements(); ++i) {
    const int64_t oh = i / y[3] % y[2], ow = i % y[3];
    int cell = static_cast<int>((values[i] + 1) / 2 * static_cast<float>(cells));
    for (int tries = 0; tries < cells; ++tries, cell = (cell + 1) % cells) {
      const int64_t ih = oh * window.stride_h - window.pad_h + cell / window.kernel_w * window.dilation_h;
      const int64_t iw = ow * window.stride_w - window.pad_w + cell % window.kernel_w * window.dilation_w;
      if (ih >= 0 && ih < x[2] && iw >= 0 && iw < x[3]) break;
    }
    values[i] = static_cast<float>(cell);
  }
}

// What batch normalisation's forward saves of x: mean, then inverse standard deviation, of the first `rows` rows.
inline void to_saved(double epsilon, const Shape& shape, const std::vector<float>& x, int64_t rows,
                     std::vector<float>& values) {
  const int64_t channels = shape[1], area = shape.elements() / (shape[0] * channels);
  const auto count = static_cast<double>(std::max<int64_t>(rows * area, 1));
  for (int64_t c = 0; c < channels; ++c) {
    double sum = 0, squares = 0;
    for (int64_t n = 0; n < rows; ++n) {
      for (int64_t i = 0; i < area; ++i) {
        const double value = x[(n * channels + c) * area + i];
        sum += value;
        squares += value * value;
      }
    }
    const double mean = sum / count;
    values[c] = static_cast<float>(mean);
    values[channels + c] = static_cast<float>(1 / std::sqrt(squares / count - mean * mean + epsilon));
  }
}

// The same of layer normalisation, for each row.
inline void to_saved_of_rows(double epsilon, const Shape& shape, const std::vector<float>& x,
                             std::vector<float>& values) {
  const int64_t rows = shape.rows(), width = shape.width();
  for (int64_t row = 0; row < rows; ++row) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < width; ++i) sum += x[row * width + i];
    const double mean = sum / static_cast<double>(width);
    for (int64_t i = 0; i < width; ++i) squares += std::pow(x[row * width + i] - mean, 2);
    values[row] = static_cast<float>(mean);
    values[rows + row] = static_cast<float>(1 / std::sqrt(squares / static_cast<double>(width) + epsilon));
  }
}

inline const Shape& buffer_shape(const OneNode& one, const std::string& name) {
  for (const graph::Buffer& buffer : one.program.buffers) {
    if (buffer.name == name) return buffer.shape;
  }
  throw std::logic_error("the node has no buffer " + name);
}

constexpr float kLossScale = 1024, kClipFactor = 0.75f;
constexpr int kSkipped = 2;

// Before an update: with f16 some were left out. Without it there is no scale, and it must not matter.
inline void to_agreement(bool scales, std::vector<float>& values) {
  using namespace graph;
  for (float& value : values) value = std::abs(value);
  values[kScale] = scales ? kLossScale : 0;
  values[kInverseScale] = scales ? 1 / kLossScale : 0;
  values[kGoodSteps] = 0;
  values[kSkippedSteps] = scales ? kSkipped : 0;
  values[kClip] = kClipFactor;
  values[kOverflow] = 0;
}

// Numbers for what a node reads: uniform in [-1, 1), except where only some numbers make sense.
inline Plain random_plain(const OneNode& one, const StepContext& context, uint64_t seed) {
  const NodeView view = one.view();
  Plain plain;
  for (BufferId id : one.node().reads) {
    const graph::Buffer& buffer = one.buffer(id);
    const RandomStream random(seed, hash_name(buffer.name), 0);
    std::vector<float>& values = plain[buffer.name];
    values.resize(buffer.shape.elements());
    for (size_t i = 0; i < values.size(); ++i) values[i] = 2 * uniform(random.at(i / 4)[i % 4]) - 1;
    if (buffer.name == "variance") {
      for (float& value : values) value += 1.5f;
    } else if (buffer.name == "labels") {
      to_labels(view.read(0).width(), values);
    } else if (buffer.name == "tokens") {
      // Others only look at the sign.
      const bool embeds = view.node.kind == OpKind::Embedding || view.node.kind == OpKind::EmbeddingBag;
      to_labels(embeds ? (view.node.pass == Pass::WeightGrad ? view.write(0) : view.read(0))[0] : 3, values);
    } else if (buffer.name == "saved" && view.node.kind == OpKind::SoftmaxCrossEntropy) {
      to_saved_of_logits(view.read(0), plain.at("logits"), values);
    } else if (buffer.name == "argmax") {
      to_argmax(view.attrs<graph::PoolAttrs>().window, view.write(0), buffer.shape, values);
    } else if (buffer.name == "saved" && view.node.kind == OpKind::LayerNorm) {
      to_saved_of_rows(view.attrs<graph::LayerNormAttrs>().epsilon, buffer_shape(one, "x"), plain.at("x"), values);
    } else if (buffer.name == "saved" && view.node.kind == OpKind::BatchNorm) {
      to_saved(view.attrs<graph::BatchNormAttrs>().epsilon, buffer_shape(one, "x"), plain.at("x"), context.rows,
               values);
    } else if (buffer.name == "master") {
      values = plain.at("w");
    } else if (buffer.name == "second_moment") {
      for (float& value : values) value = std::abs(value);
    } else if (buffer.name == "agreement") {
      to_agreement(one.graph.dtype == DType::F16 || view.node.kind == OpKind::SoftmaxCrossEntropy, values);
    }
  }
  return plain;
}

}  // namespace millrace::backend::harness
