// cuDNN for one worker, for convolutions and attention, and the choices among its engines.
#pragma once

#include <cudnn.h>

#include <map>
#include <string>

#include "millrace/backend/choices.h"
#include "millrace/backend/cuda/cuda_backend.h"
#include "millrace/backend/cuda/cudnn_graph.h"
#include "millrace/backend/cuda/device.h"

namespace millrace::backend::cuda {

class ConvLibrary {
 public:
  ConvLibrary(const Device& device, const CudaOptions& options);
  ~ConvLibrary() { cudnnDestroy(handle_); }
  ConvLibrary(const ConvLibrary&) = delete;
  ConvLibrary& operator=(const ConvLibrary&) = delete;

  cudnnHandle_t handle() const { return handle_; }
  bool deterministic() const { return wishes_.deterministic; }

  // One way to do some work: a graph of cuDNN, and what has to be run after it.
  struct Way {
    std::string name;
    std::shared_ptr<OperationGraph> graph;
    std::function<void(const std::vector<void*>& memory)> after;
    size_t operands = 3;  // that the graph has, the first of those given
  };
  struct Operand {
    int64_t id = 0;
    int64_t elements = 0;
    DType dtype = DType::F32;
    const void* value = nullptr;  // on the host, of a tensor by value
  };
  struct Chosen {
    std::shared_ptr<const ConvPlan> plan;  // null: cuDNN has no engine for it
    size_t way = 0;
    std::string name;
  };
  // The fastest engine of all ways, remembered under `work`. `memory` of a way's `after` is that of the operands.
  Chosen choose(const std::string& work, const std::vector<Way>& ways, const std::vector<Operand>& operands);

 private:
  Chosen find(const std::string& name, const std::vector<Way>& ways);

  const Device device_;
  OperationGraph::Wishes wishes_;
  Choices choices_;
  std::map<std::string, Chosen> made_;
  std::function<void(const std::string&)> on_measure_;
  cudnnHandle_t handle_ = nullptr;
};

}  // namespace millrace::backend::cuda
