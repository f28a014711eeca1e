// cuDNN's graph interface, as little of it as convolutions and attention need: tensors and operations make a graph, a
// graph has engines that can run it, an engine becomes a plan, and a plan is executed on memory.
#pragma once

#include <cudnn.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/backend/cuda/device.h"
#include "millrace/graph/graph.h"

namespace millrace::backend::cuda {

void check(cudnnStatus_t status, const char* call, const char* file, int line);
#define MILLRACE_CUDNN(call) ::millrace::backend::cuda::check((call), #call, __FILE__, __LINE__)

// Made, filled, finalised; destroyed with its owner.
class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type);

  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, const void* values);
  void set(cudnnBackendAttributeName_t name, cudnnDataType_t value) { set(name, CUDNN_TYPE_DATA_TYPE, 1, &value); }
  void set(cudnnBackendAttributeName_t name, int64_t value) { set(name, CUDNN_TYPE_INT64, 1, &value); }
  void set(cudnnBackendAttributeName_t name, float value) { set(name, CUDNN_TYPE_FLOAT, 1, &value); }
  void set(cudnnBackendAttributeName_t name, bool value) { set(name, CUDNN_TYPE_BOOLEAN, 1, &value); }
  void set(cudnnBackendAttributeName_t name, const std::vector<int64_t>& values) {
    set(name, CUDNN_TYPE_INT64, static_cast<int64_t>(values.size()), values.data());
  }
  void set(cudnnBackendAttributeName_t name, const Descriptor& value);
  void finalize() { MILLRACE_CUDNN(cudnnBackendFinalize(get())); }
  bool try_finalize() { return cudnnBackendFinalize(get()) == CUDNN_STATUS_SUCCESS; }

  cudnnBackendDescriptor_t get() const { return handle_.get(); }

 private:
  struct Destroy {
    void operator()(void* handle) const { cudnnBackendDestroyDescriptor(handle); }
  };
  std::unique_ptr<void, Destroy> handle_;
};

// Dimensions in the order N C H W (or K C R S), with the strides they have in memory. A virtual tensor is never stored.
// One by value is read from the host's memory whenever its plan is run. U8 stands for truth values.
struct TensorSpec {
  int64_t id = 0;
  DType dtype = DType::F32;
  std::vector<int64_t> dims, strides;
  bool is_virtual = false;
  bool by_value = false;
  bool in_fragments = false;  // its elements in an order of cuDNN's own
};

enum class ConvPass { Forward, InputGrad, WeightGrad };

class OperationGraph {
 public:
  // Forward: x, w -> y. InputGrad: dx, w, dy (x being what is written). WeightGrad: x, dw, dy (w being written).
  void add_conv(ConvPass pass, const TensorSpec& x, const TensorSpec& w, const TensorSpec& y,
                const graph::Window& window);
  void add_pointwise(cudnnPointwiseMode_t mode, const TensorSpec& x, const TensorSpec* other, const TensorSpec& y);
  void add_index(int64_t axis, const TensorSpec& x, const TensorSpec& y);  // y: the place of each element of x
  void add_select(const TensorSpec& x, const TensorSpec& otherwise, const TensorSpec& condition, const TensorSpec& y);
  void add_matmul(const TensorSpec& a, const TensorSpec& b, const TensorSpec& c);
  void add_reduction(cudnnReduceTensorOp_t mode, const TensorSpec& x, const TensorSpec& y);
  void add_reshape(const TensorSpec& x, const TensorSpec& y);

  // Sums of x and of its squares, per channel.
  void add_sums(const TensorSpec& x, const TensorSpec& sum, const TensorSpec& squares);

  struct Engine {
    Descriptor config;
    std::string name;  // engine and its knobs: the same again means the same algorithm
  };
  struct Wishes {
    bool tensor_cores_for_f32 = false;
    bool deterministic = false;
    size_t most = 16;
  };
  // The likely fastest first. Empty where cuDNN cannot run the graph.
  std::vector<Engine> engines(cudnnHandle_t handle, const Wishes& wishes);

 private:
  Descriptor& tensor(const TensorSpec& spec);
  struct Pointwise {
    cudnnPointwiseMode_t mode;
    const TensorSpec *x, *other, *condition, *y;
    cudnnDataType_t precision = CUDNN_DATA_FLOAT;
    std::optional<int64_t> axis = {};
  };
  void add(const Pointwise& what);

  std::vector<std::unique_ptr<Descriptor>> kept_;
  std::vector<std::unique_ptr<Descriptor>> operations_;
  std::unique_ptr<Descriptor> graph_;
  bool f32_ = true;
};

class ConvPlan {
 public:
  // Null where the engine turns out not to work.
  static std::shared_ptr<const ConvPlan> make(cudnnHandle_t handle, const OperationGraph::Engine& engine);

  size_t workspace_bytes() const { return workspace_bytes_; }

  // Runs on the handle's stream; `pack` is made once for fixed memory.
  std::shared_ptr<const Descriptor> pack(const std::vector<int64_t>& ids, const std::vector<void*>& memory,
                                         void* workspace) const;
  void run(cudnnHandle_t handle, const Descriptor& pack) const {
    MILLRACE_CUDNN(cudnnBackendExecute(handle, plan_.get(), pack.get()));
  }

 private:
  explicit ConvPlan(Descriptor plan) : plan_(std::move(plan)) {}
  Descriptor plan_;
  size_t workspace_bytes_ = 0;
};

}  // namespace millrace::backend::cuda
