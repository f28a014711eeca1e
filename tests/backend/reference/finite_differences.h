// Gradients of the reference backend against central differences of its own forward, in double.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "backend/node_harness.h"
#include "millrace/backend/reference/reference_backend.h"

namespace millrace::backend::harness {

using Doubles = std::span<double>;

inline Doubles doubles(const OneNode& one, const NodeRun& run, BufferId id) {
  return {static_cast<double*>(run.memory(id)), static_cast<size_t>(one.buffer(id).shape.elements())};
}

// Bytes by buffer name: what one node leaves for the next, as buffers of a whole program would.
using Contents = std::map<std::string, std::vector<char>>;

inline size_t plain_bytes(const graph::Buffer& buffer) {
  return static_cast<size_t>(buffer.shape.elements()) * bytes_of(buffer.dtype);
}

inline void keep(const OneNode& one, const NodeRun& run, const std::vector<BufferId>& ids, Contents& contents) {
  for (BufferId id : ids) {
    const char* bytes = static_cast<const char*>(run.memory(id));
    contents[one.buffer(id).name].assign(bytes, bytes + plain_bytes(one.buffer(id)));
  }
}

// The scalar that is differentiated, after one forward: sum(dy * y) over the rows that count, or the mean loss.
class Objective {
 public:
  Objective(const NodeSpec& spec, const StepContext& context, const std::vector<float>& dy)
      : one_(build(spec)), context_(context), dy_(dy), run_(*backend_, one_) {
    run_.fill(random_plain(one_, context, 17));
    run_.run(context);
    // Batch normalisation does not look at the gradient of rows that are not samples.
    counted_ = spec.kind == OpKind::BatchNorm ? dy.size() / spec.x[0] * context.rows : dy.size();
  }

  const OneNode& one() const { return one_; }
  const NodeRun& run() const { return run_; }

  // Of reads[read] at each of its elements.
  std::vector<double> numeric_gradient(BufferId read) {
    constexpr double kStep = 1e-5;
    std::vector<double> gradient;
    for (double& element : doubles(one_, run_, read)) {
      const double here = element;
      element = here + kStep;
      const double above = value();
      element = here - kStep;
      const double below = value();
      element = here;
      gradient.push_back((above - below) / (2 * kStep));
    }
    return gradient;
  }

 private:
  double value() {
    const Doubles y = doubles(one_, run_, one_.node().writes[0]);
    if (one_.node().kind == OpKind::SoftmaxCrossEntropy) {
      std::fill(y.begin(), y.end(), 0.0);
      run_.run(context_);
      const Shape& logits = one_.view().read(0);
      const auto rows_per_sample = static_cast<double>(logits.rows() / logits[0]);
      return y[graph::kLossSum] * context_.inverse_samples / rows_per_sample;
    }
    run_.run(context_);
    double sum = 0;
    for (size_t i = 0; i < counted_; ++i) sum += double{dy_[i]} * y[i];
    return sum;
  }

  std::unique_ptr<Backend> backend_ = make_reference_backend({});
  OneNode one_;
  StepContext context_;
  std::vector<float> dy_;
  NodeRun run_;
  size_t counted_ = 0;
};

// Runs the operator's `pass` after its forward, and compares each of its results "dNAME" for which the forward reads
// NAME. `spec.pass` and `spec.dtype` are set here.
inline void expect_gradient_matches(NodeSpec spec, Pass pass, StepContext context) {
  SCOPED_TRACE("x " + spec.x.str());
  spec.dtype = DType::F64;
  const auto backend = make_reference_backend({});

  // dy is any numbers; a fused ReLU of conv and linear is masked by its own node, so it is left out here.
  std::vector<float> dy(output_shape(spec).elements());
  for (size_t i = 0; i < dy.size(); ++i) dy[i] = 2 * uniform(RandomStream(3, 5, 0).at(i)[0]) - 1;

  spec.pass = Pass::Forward;
  Objective objective(spec, context, dy);
  Contents contents;
  keep(objective.one(), objective.run(), objective.one().node().reads, contents);
  keep(objective.one(), objective.run(), objective.one().node().writes, contents);
  const std::vector<double> wide(dy.begin(), dy.end());
  contents["dy"].assign(reinterpret_cast<const char*>(wide.data()),
                        reinterpret_cast<const char*>(wide.data() + wide.size()));

  // WeightGrad of batch normalisation reads what InputGrad left.
  const std::vector<Pass> passes = pass == Pass::WeightGrad && spec.kind == OpKind::BatchNorm
                                       ? std::vector{Pass::InputGrad, pass}
                                       : std::vector{pass};
  for (Pass each : passes) {
    spec.pass = each;
    const OneNode one = build(spec);
    NodeRun run(*backend, one);
    run.fill(random_plain(one, context, 1));
    for (BufferId id : one.node().reads) {
      const std::vector<char>& bytes = contents.at(one.buffer(id).name);
      ASSERT_EQ(bytes.size(), plain_bytes(one.buffer(id))) << one.buffer(id).name;
      std::memcpy(run.memory(id), bytes.data(), bytes.size());
    }
    run.run(context);
    keep(one, run, one.node().writes, contents);
    if (each != pass) continue;

    int compared = 0;
    for (BufferId read : objective.one().node().reads) {
      for (BufferId write : one.node().writes) {
        if (one.buffer(write).name != "d" + objective.one().buffer(read).name) continue;
        ++compared;
        const std::vector<double> numeric = objective.numeric_gradient(read);
        const Doubles computed = doubles(one, run, write);
        for (size_t i = 0; i < numeric.size(); ++i) {
          ASSERT_NEAR(computed[i], numeric[i], 1e-7 * (1 + std::abs(numeric[i])))
              << one.buffer(write).name << ", element " << i;
        }
      }
    }
    EXPECT_GT(compared, 0) << "the pass writes no gradient of what the forward reads";
  }
}

}  // namespace millrace::backend::harness
