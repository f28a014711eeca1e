// Steps of optimizers on the GPU against those of the reference, which has no half types and no loss scale.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "backend/cuda/cuda_harness.h"

namespace millrace::backend::harness::cuda {

constexpr OpKind kSteps[] = {OpKind::SgdStep, OpKind::AdamStep, OpKind::LambStep};

// Several nodes of one kind, each with a program of its own, as one kernel. All have the agreement of the first.
class TogetherRun {
 public:
  TogetherRun(Backend& cuda, const std::vector<OneNode>& ones) : cuda_(cuda), ones_(ones) {
    std::vector<NodeView> views;
    for (const OneNode& one : ones) {
      views.push_back(one.view());
      memory_.emplace_back();
      for (BufferId id = 0; id < static_cast<BufferId>(one.program.buffers.size()); ++id) {
        memory_.back().push_back(cuda.allocate(cuda.bytes(one.graph, one.program, id)));
      }
    }
    const Kernel kernel = cuda.prepare_together(views);
    Bindings bindings;
    for (size_t i = 0; i < ones.size(); ++i) {
      for (BufferId id : ones[i].node().reads) bindings.reads.push_back(address(i, id));
      for (BufferId id : ones[i].node().writes) bindings.writes.push_back(address(i, id));
    }
    if (kernel.scratch_bytes > 0) scratch_ = cuda.allocate(kernel.scratch_bytes);
    bindings.scratch = scratch_;
    task_ = kernel.bind(bindings);
  }
  TogetherRun(const TogetherRun&) = delete;
  TogetherRun& operator=(const TogetherRun&) = delete;
  ~TogetherRun() {
    for (const std::vector<void*>& of_node : memory_) {
      for (void* memory : of_node) cuda_.release(memory, 0);
    }
    if (scratch_) cuda_.release(scratch_, 0);
  }

  std::vector<Plain> run(const StepContext& context, const std::vector<Plain>& plain) {
    for (size_t i = 0; i < ones_.size(); ++i) {
      const OneNode& one = ones_[i];
      for (BufferId id : one.node().reads) {
        cuda_.upload(one.graph, one.program, id, plain[i].at(one.buffer(id).name), address(i, id));
      }
    }
    cuda_.begin(context);
    task_(context);
    cuda_.wait();
    std::vector<Plain> results;
    for (size_t i = 0; i < ones_.size(); ++i) {
      const OneNode& one = ones_[i];
      results.emplace_back();
      for (BufferId id : one.results()) {
        std::vector<float>& values = results.back()[one.buffer(id).name];
        values.resize(static_cast<size_t>(one.buffer(id).shape.elements()));
        cuda_.download(one.graph, one.program, id, address(i, id), values);
      }
    }
    return results;
  }

 private:
  void* address(size_t node, BufferId id) const {
    const BufferId agreement = ones_[node].program.agreement;
    if (agreement != graph::kNone && id == agreement) {
      return memory_[0][static_cast<size_t>(ones_[0].program.agreement)];
    }
    return memory_[node][static_cast<size_t>(id)];
  }

  Backend& cuda_;
  const std::vector<OneNode>& ones_;
  std::vector<std::vector<void*>> memory_;
  void* scratch_ = nullptr;
  Task task_;
};

class CudaSteps : public CudaKernels {
 protected:
  // Of half types the master is what must follow the reference closely.
  void expect_steps_agree(NodeSpec spec, const StepContext& context) {
    ++seed_;
    for (DType dtype : kTypes) {
      if (spec.loss_scale && dtype != DType::F16) continue;
      spec.dtype = dtype;
      const bool scales = dtype == DType::F16 && (spec.loss_scale || spec.clips);
      SCOPED_TRACE(testing::Message() << graph::name_of(spec.kind) << " in " << name_of(dtype) << " on " << spec.x.str()
                                      << ", loss scale " << scales << ", clips " << spec.clips);
      const OneNode one = build_as_emitted(spec);
      const Plain plain = random_rounded(one, context, seed_);
      NodeSpec plain_spec = spec;
      plain_spec.loss_scale = false;
      Plain unscaled = plain;
      StepContext counted = context;
      if (scales) {
        for (float& value : unscaled.at("dw")) value /= kLossScale;
        counted.update -= kSkipped;
      }
      const char* weight = spec.next_version ? "new w" : "w";
      Plain expected = run_node(*reference_, build_for_reference(plain_spec), counted, unscaled);
      expected["master"] = expected.at(weight);
      const Plain actual = run_on_dirty_memory(*cuda_, one, context, plain);
      for (const auto& [name, got] : actual) {
        const bool rounds = name == weight && is_half(dtype);
        expect_near(name, expected.at(name), got, got.size(), rounds ? tolerance_of(dtype) : 1e-5);
      }
      if (is_half(dtype) && spec.role == graph::ParamRole::Weight) {
        for (size_t i = 0; i < actual.at(weight).size(); ++i) {
          EXPECT_EQ(actual.at(weight)[i], rounded(actual.at("master")[i], dtype)) << "element " << i;
        }
      }
    }
  }
};

}  // namespace millrace::backend::harness::cuda
