#include "millrace/backend/cuda/cudnn_graph.h"

#include <algorithm>
#include <set>

#include "millrace/base/error.h"

namespace millrace::backend::cuda {
namespace {

cudnnDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::F16: return CUDNN_DATA_HALF;
    case DType::BF16: return CUDNN_DATA_BFLOAT16;
    case DType::I32: return CUDNN_DATA_INT32;
    case DType::U8: return CUDNN_DATA_BOOLEAN;
    default: return CUDNN_DATA_FLOAT;
  }
}

// Attributes that are lists: as many as there are.
template <typename T>
std::vector<T> list_of(const Descriptor& from, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type) {
  int64_t count = 0;
  if (cudnnBackendGetAttribute(from.get(), name, type, 0, &count, nullptr) != CUDNN_STATUS_SUCCESS) return {};
  std::vector<T> values(static_cast<size_t>(count));
  if (count > 0) MILLRACE_CUDNN(cudnnBackendGetAttribute(from.get(), name, type, count, &count, values.data()));
  values.resize(static_cast<size_t>(count));
  return values;
}

// Attributes that are other descriptors: as many as there are, `most` at most (some do not say how many beforehand).
std::vector<Descriptor> descriptors_of(const Descriptor& from, cudnnBackendAttributeName_t name,
                                       cudnnBackendDescriptorType_t type, int64_t most = 0) {
  int64_t count = most;
  if (most == 0 && cudnnBackendGetAttribute(from.get(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr) !=
                       CUDNN_STATUS_SUCCESS) {
    return {};
  }
  std::vector<Descriptor> made;
  std::vector<cudnnBackendDescriptor_t> handles;
  for (int64_t i = 0; i < count; ++i) {
    made.emplace_back(type);
    handles.push_back(made.back().get());
  }
  int64_t returned = 0;
  if (count > 0) {
    const cudnnStatus_t status =
        cudnnBackendGetAttribute(from.get(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &returned, handles.data());
    if (status != CUDNN_STATUS_SUCCESS) returned = 0;
  }
  made.erase(made.begin() + std::min<int64_t>(returned, count), made.end());
  return made;
}

struct EngineFacts {
  int64_t index = -1;
  std::set<cudnnBackendNumericalNote_t> notes;
};

EngineFacts facts_of(const Descriptor& config) {
  EngineFacts facts;
  const std::vector<Descriptor> engines =
      descriptors_of(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1);
  if (engines.empty()) return facts;
  const auto index = list_of<int64_t>(engines[0], CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64);
  if (!index.empty()) facts.index = index[0];
  for (auto note :
       list_of<cudnnBackendNumericalNote_t>(engines[0], CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE)) {
    facts.notes.insert(note);
  }
  return facts;
}

std::string name_of(const Descriptor& config, int64_t engine) {
  std::string name = fmt::format("engine{}", engine);
  for (const Descriptor& knob : descriptors_of(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                                               CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, CUDNN_KNOB_TYPE_COUNTS)) {
    const auto type = list_of<cudnnBackendKnobType_t>(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE);
    const auto value = list_of<int64_t>(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64);
    if (!type.empty() && !value.empty()) name += fmt::format(".{}={}", static_cast<int>(type[0]), value[0]);
  }
  return name;
}

bool wanted(const EngineFacts& facts, const OperationGraph::Wishes& wishes, bool f32) {
  auto has = [&](cudnnBackendNumericalNote_t note) { return facts.notes.count(note) > 0; };
  if (has(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION)) return false;
  if (has(CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6) || has(CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13)) return false;
  if (has(CUDNN_NUMERICAL_NOTE_FFT)) return false;
  if (wishes.deterministic && has(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)) return false;
  if (!f32 || wishes.tensor_cores_for_f32) return true;
  return !has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE) && !has(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS) &&
         !has(CUDNN_NUMERICAL_NOTE_WINOGRAD);
}

}  // namespace

void check(cudnnStatus_t status, const char* call, const char* file, int line) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char last[256] = {};
  cudnnGetLastErrorString(last, sizeof last);
  const std::string_view path(file);
  fail_run("cuDNN: {} ({}), {}:{}: {}", cudnnGetErrorString(status), last, path.substr(path.rfind('/') + 1), line,
           call);
}

Descriptor::Descriptor(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t handle = nullptr;
  MILLRACE_CUDNN(cudnnBackendCreateDescriptor(type, &handle));
  handle_.reset(handle);
}

void Descriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                     const void* values) {
  MILLRACE_CUDNN(cudnnBackendSetAttribute(get(), name, type, count, values));
}

void Descriptor::set(cudnnBackendAttributeName_t name, const Descriptor& value) {
  const cudnnBackendDescriptor_t handle = value.get();
  set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &handle);
}

Descriptor& OperationGraph::tensor(const TensorSpec& spec) {
  auto made = std::make_unique<Descriptor>(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  made->set(CUDNN_ATTR_TENSOR_UNIQUE_ID, spec.id);
  made->set(CUDNN_ATTR_TENSOR_DATA_TYPE, type_of(spec.dtype));
  made->set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, int64_t{16});
  made->set(CUDNN_ATTR_TENSOR_DIMENSIONS, spec.dims);
  made->set(CUDNN_ATTR_TENSOR_STRIDES, spec.strides);
  if (spec.is_virtual) made->set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, true);
  if (spec.by_value) made->set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, true);
  if (spec.in_fragments) {
    const cudnnBackendTensorReordering_t order = CUDNN_TENSOR_REORDERING_F16x16;
    made->set(CUDNN_ATTR_TENSOR_REORDERING_MODE, CUDNN_TYPE_TENSOR_REORDERING_MODE, 1, &order);
  }
  made->finalize();
  if (!spec.is_virtual && spec.dtype != DType::F32) f32_ = false;
  return *kept_.emplace_back(std::move(made));
}

void OperationGraph::add_conv(ConvPass pass, const TensorSpec& x, const TensorSpec& w, const TensorSpec& y,
                              const graph::Window& window) {
  auto conv = std::make_unique<Descriptor>(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  conv->set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  conv->set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
  conv->set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, int64_t{2});
  const std::vector<int64_t> pads{window.pad_h, window.pad_w};
  conv->set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, pads);
  conv->set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, pads);
  conv->set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, std::vector<int64_t>{window.stride_h, window.stride_w});
  conv->set(CUDNN_ATTR_CONVOLUTION_DILATIONS, std::vector<int64_t>{window.dilation_h, window.dilation_w});
  conv->finalize();

  struct Names {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t conv, alpha, beta, x, w, y;
  };
  static constexpr Names kNames[] = {
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY}};
  const Names& names = kNames[static_cast<int>(pass)];
  auto operation = std::make_unique<Descriptor>(names.type);
  operation->set(names.conv, *conv);
  operation->set(names.x, tensor(x));
  operation->set(names.w, tensor(w));
  operation->set(names.y, tensor(y));
  operation->set(names.alpha, 1.0f);
  operation->set(names.beta, 0.0f);
  operation->finalize();
  kept_.push_back(std::move(conv));
  operations_.push_back(std::move(operation));
}

void OperationGraph::add(const Pointwise& what) {
  auto pointwise = std::make_unique<Descriptor>(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  pointwise->set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &what.mode);
  pointwise->set(CUDNN_ATTR_POINTWISE_MATH_PREC, what.precision);
  if (what.axis) pointwise->set(CUDNN_ATTR_POINTWISE_AXIS, *what.axis);
  pointwise->finalize();
  auto operation = std::make_unique<Descriptor>(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation->set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, *pointwise);
  operation->set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, tensor(*what.x));
  if (what.other) operation->set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, tensor(*what.other));
  if (what.condition) operation->set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, tensor(*what.condition));
  operation->set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, tensor(*what.y));
  operation->finalize();
  kept_.push_back(std::move(pointwise));
  operations_.push_back(std::move(operation));
}

void OperationGraph::add_pointwise(cudnnPointwiseMode_t mode, const TensorSpec& x, const TensorSpec* other,
                                   const TensorSpec& y) {
  add({mode, &x, other, nullptr, &y, y.dtype == DType::U8 ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT});
}

void OperationGraph::add_index(int64_t axis, const TensorSpec& x, const TensorSpec& y) {
  add({CUDNN_POINTWISE_GEN_INDEX, &x, nullptr, nullptr, &y, CUDNN_DATA_INT32, axis});
}

void OperationGraph::add_select(const TensorSpec& x, const TensorSpec& otherwise, const TensorSpec& condition,
                                const TensorSpec& y) {
  add({CUDNN_POINTWISE_BINARY_SELECT, &x, &otherwise, &condition, &y});
}

void OperationGraph::add_matmul(const TensorSpec& a, const TensorSpec& b, const TensorSpec& c) {
  auto matmul = std::make_unique<Descriptor>(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  matmul->set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
  matmul->finalize();
  auto operation = std::make_unique<Descriptor>(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  operation->set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, tensor(a));
  operation->set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, tensor(b));
  operation->set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, tensor(c));
  operation->set(CUDNN_ATTR_OPERATION_MATMUL_DESC, *matmul);
  operation->finalize();
  kept_.push_back(std::move(matmul));
  operations_.push_back(std::move(operation));
}

void OperationGraph::add_reduction(cudnnReduceTensorOp_t mode, const TensorSpec& x, const TensorSpec& y) {
  auto reduction = std::make_unique<Descriptor>(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  reduction->set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
  reduction->set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  reduction->finalize();
  auto operation = std::make_unique<Descriptor>(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  operation->set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, tensor(x));
  operation->set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, tensor(y));
  operation->set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, *reduction);
  operation->finalize();
  kept_.push_back(std::move(reduction));
  operations_.push_back(std::move(operation));
}

void OperationGraph::add_reshape(const TensorSpec& x, const TensorSpec& y) {
  auto operation = std::make_unique<Descriptor>(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  operation->set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, tensor(x));
  operation->set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, tensor(y));
  operation->finalize();
  operations_.push_back(std::move(operation));
}

void OperationGraph::add_sums(const TensorSpec& x, const TensorSpec& sum, const TensorSpec& squares) {
  auto operation = std::make_unique<Descriptor>(CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR);
  const cudnnGenStatsMode_t mode = CUDNN_GENSTATS_SUM_SQSUM;
  operation->set(CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_TYPE_GENSTATS_MODE, 1, &mode);
  operation->set(CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_DATA_FLOAT);
  operation->set(CUDNN_ATTR_OPERATION_GENSTATS_XDESC, tensor(x));
  operation->set(CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, tensor(sum));
  operation->set(CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, tensor(squares));
  operation->finalize();
  operations_.push_back(std::move(operation));
}

std::vector<OperationGraph::Engine> OperationGraph::engines(cudnnHandle_t handle, const Wishes& wishes) {
  graph_ = std::make_unique<Descriptor>(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  std::vector<cudnnBackendDescriptor_t> operations;
  for (const auto& operation : operations_) operations.push_back(operation->get());
  graph_->set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<int64_t>(operations.size()),
              operations.data());
  graph_->set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  if (!graph_->try_finalize()) return {};

  std::vector<Engine> found;
  std::set<std::string> names;
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    if (mode == CUDNN_HEUR_MODE_FALLBACK && !found.empty()) break;
    Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, *graph_);
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (!heuristics.try_finalize()) continue;
    for (Descriptor& config :
         descriptors_of(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)) {
      if (found.size() >= wishes.most) break;
      const EngineFacts facts = facts_of(config);
      if (!wanted(facts, wishes, f32_)) continue;
      std::string name = name_of(config, facts.index);
      if (names.insert(name).second) found.push_back({std::move(config), std::move(name)});
    }
  }
  return found;
}

std::shared_ptr<const ConvPlan> ConvPlan::make(cudnnHandle_t handle, const OperationGraph::Engine& engine) {
  Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engine.config);
  if (!plan.try_finalize()) return nullptr;
  int64_t bytes = 0, count = 0;
  MILLRACE_CUDNN(cudnnBackendGetAttribute(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                          &count, &bytes));
  std::shared_ptr<ConvPlan> made(new ConvPlan(std::move(plan)));
  made->workspace_bytes_ = static_cast<size_t>(bytes);
  return made;
}

std::shared_ptr<const Descriptor> ConvPlan::pack(const std::vector<int64_t>& ids, const std::vector<void*>& memory,
                                                 void* workspace) const {
  auto made = std::make_shared<Descriptor>(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  made->set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids);
  made->set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, static_cast<int64_t>(memory.size()),
            memory.data());
  made->set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  made->finalize();
  return made;
}

}  // namespace millrace::backend::cuda
