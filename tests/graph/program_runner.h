// Runs a whole Program on the reference backend with every buffer in memory of its own: nothing is in place, nothing
// is reused, so what comes out depends on the nodes alone.
#pragma once

#include <cassert>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/backend/reference/reference_backend.h"
#include "millrace/base/random.h"
#include "millrace/graph/program.h"

namespace millrace::graph {

// Numbers of element type T, which must be the graph's.
template <typename T>
class ProgramRunner {
 public:
  ProgramRunner(const Graph& graph, Program program, const backend::OptimizerOptions& sgd = {})
      : graph_(graph), program_(std::move(program)), backend_(backend::make_reference_backend(sgd)) {
    for (BufferId id = 0; id < static_cast<BufferId>(program_.buffers.size()); ++id) {
      bytes_.push_back(backend_->bytes(graph_, program_, id));
      memory_.push_back(backend_->allocate(bytes_.back()));
    }
    for (const Node& node : program_.nodes) {
      const backend::Kernel kernel = backend_->prepare({graph_, program_, node});
      assert(kernel.scratch_bytes == 0);
      backend::Bindings bindings;
      for (BufferId id : node.reads) bindings.reads.push_back(memory_[id]);
      for (BufferId id : node.writes) bindings.writes.push_back(memory_[id]);
      tasks_.push_back(kernel.bind(bindings));
    }
  }
  ProgramRunner(const ProgramRunner&) = delete;
  ProgramRunner& operator=(const ProgramRunner&) = delete;
  ~ProgramRunner() {
    for (size_t id = 0; id < memory_.size(); ++id) backend_->release(memory_[id], bytes_[id]);
  }

  const Program& program() const { return program_; }

  std::span<T> values(BufferId id) {
    assert(bytes_[id] == static_cast<size_t>(program_.buffers[id].shape.elements()) * sizeof(T));
    return {static_cast<T*>(memory_[id]), bytes_[id] / sizeof(T)};
  }
  std::span<int32_t> labels() { return {static_cast<int32_t*>(memory_[program_.labels]), bytes_[program_.labels] / 4}; }

  // The buffer of a parameter in a role, or kNone.
  BufferId find(BufferRole role, ParamId param) const {
    for (BufferId id = 0; id < static_cast<BufferId>(program_.buffers.size()); ++id) {
      if (program_.buffers[id].role == role && program_.buffers[id].param == param) return id;
    }
    return kNone;
  }

  void run(const backend::StepContext& context) {
    for (const backend::Task& task : tasks_) task(context);
  }
  // What belongs to one micro-batch: everything before the updates.
  void run_part(const backend::StepContext& context) {
    for (size_t i = 0; i < program_.first_update; ++i) tasks_[i](context);
  }
  // The mean loss of one forward.
  double loss(const backend::StepContext& context) {
    auto* metrics = static_cast<double*>(memory_[program_.metrics]);
    std::fill(metrics, metrics + kNumMetrics, 0.0);
    for (size_t i = 0; i < tasks_.size(); ++i) {
      if (program_.nodes[i].pass == Pass::Forward && program_.nodes[i].kind != OpKind::Accumulate) tasks_[i](context);
    }
    return metrics[kLossSum] * context.inverse_samples;
  }

 private:
  const Graph& graph_;
  Program program_;
  std::unique_ptr<backend::Backend> backend_;
  std::vector<size_t> bytes_;
  std::vector<void*> memory_;
  std::vector<backend::Task> tasks_;
};

// Uniform in [-1, 1), by name.
inline double number(const std::string& name, size_t i) {
  const RandomStream random(7, hash_name(name), 0);
  return 2.0 * uniform(random.at(i / 4)[i % 4]) - 1.0;
}

// Images, labels and parameters that make a small network well conditioned. Parameters go by name, so that a fused
// and an unfused program get the same.
template <typename T>
void fill_randomly(const Graph& graph, ProgramRunner<T>& runner) {
  const Program& program = runner.program();
  for (BufferId id = 0; id < static_cast<BufferId>(program.buffers.size()); ++id) {
    const Buffer& buffer = program.buffers[id];
    if (id == program.labels) {
      const int64_t classes = graph.values[graph.logits].shape[1];
      for (size_t i = 0; i < runner.labels().size(); ++i) {
        runner.labels()[i] = static_cast<int32_t>(static_cast<int64_t>(i) % classes);
      }
      continue;
    }
    const bool given =
        id == program.features || buffer.role == BufferRole::Weight || buffer.role == BufferRole::Statistic;
    if (!given) continue;
    double offset = 0, scale = 1;
    if (buffer.param != kNone) {
      const ParamRole role = graph.params[buffer.param].role;
      if (role == ParamRole::NormScale || role == ParamRole::RunningVariance) offset = 1;
      scale = role == ParamRole::Weight ? 0.5 : 0.3;
    }
    for (size_t i = 0; i < runner.values(id).size(); ++i) {
      runner.values(id)[i] = static_cast<T>(offset + scale * number(buffer.name, i));
    }
  }
}

}  // namespace millrace::graph
