#include "millrace/backend/cuda/matmul.h"

#include <array>
#include <cstring>
#include <limits>

#include "millrace/backend/cuda/host_calls.h"
#include "millrace/backend/cuda/trial.h"
#include "millrace/base/error.h"

namespace millrace::backend::cuda {
namespace {

constexpr size_t kMostWorkspace = size_t{64} << 20;
constexpr int kMostCandidates = 24;

void check(cublasStatus_t status, const char* call, const char* file, int line) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const std::string_view path(file);
  fail_run("cuBLASLt: {}, {}:{}: {}", cublasLtGetStatusName(status), path.substr(path.rfind('/') + 1), line, call);
}
#define MILLRACE_CUBLAS(call) check((call), #call, __FILE__, __LINE__)

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::F16: return CUDA_R_16F;
    case DType::BF16: return CUDA_R_16BF;
    default: return CUDA_R_32F;
  }
}

// An algorithm is a few words that cuBLASLt can take back.
std::string to_text(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  for (uint64_t word : algorithm.data) text += fmt::format("{:x}.", word);
  return text;
}

bool from_text(const std::string& text, cublasLtMatmulAlgo_t& algorithm) {
  size_t at = 0;
  for (uint64_t& word : algorithm.data) {
    const size_t dot = text.find('.', at);
    if (dot == std::string::npos) return false;
    word = std::stoull(text.substr(at, dot - at), nullptr, 16);
    at = dot + 1;
  }
  return true;
}

// A matrix as it is stored.
struct Stored {
  int64_t rows, width, pitch;
  int64_t elements() const { return rows * pitch; }
};
Stored stored(int64_t rows, int64_t width, int64_t pitch = 0) { return {rows, width, pitch == 0 ? width : pitch}; }
Stored stored_a(const MatmulSpec& spec) {
  return spec.transposes_a ? stored(spec.inner, spec.rows, spec.a_pitch) : stored(spec.rows, spec.inner, spec.a_pitch);
}
Stored stored_b(const MatmulSpec& spec) {
  return spec.transposes_b ? stored(spec.columns, spec.inner) : stored(spec.inner, spec.columns);
}
Stored stored_d(const MatmulSpec& spec) { return stored(spec.rows, spec.columns, spec.d_pitch); }

// cuBLASLt counts by columns: a row-major product is the transposed one of the factors in the other order.
class LtMatmul final : public Matmul {
 public:
  LtMatmul(cublasLtHandle_t handle, cudaStream_t stream, const MatmulSpec& spec, bool tf32)
      : handle_(handle), stream_(stream), spec_(spec) {
    const bool f32 = spec.dtype == DType::F32;
    MILLRACE_CUBLAS(cublasLtMatmulDescCreate(
        &operation_, f32 && tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
    // First factor: b, second: a.
    set(CUBLASLT_MATMUL_DESC_TRANSA, spec.transposes_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, spec.transposes_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, spec.bias && spec.relu ? CUBLASLT_EPILOGUE_RELU_BIAS
                                       : spec.bias            ? CUBLASLT_EPILOGUE_BIAS
                                       : spec.relu            ? CUBLASLT_EPILOGUE_RELU
                                                              : CUBLASLT_EPILOGUE_DEFAULT);
    if (spec.bias) set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(spec.dtype));
    layout(first_, stored_b(spec), spec.dtype);
    layout(second_, stored_a(spec), spec.dtype);
    layout(out_, stored_d(spec), spec.dtype);
  }
  ~LtMatmul() override {
    for (cublasLtMatrixLayout_t made : {first_, second_, out_}) cublasLtMatrixLayoutDestroy(made);
    cublasLtMatmulDescDestroy(operation_);
  }
  LtMatmul(const LtMatmul&) = delete;
  LtMatmul& operator=(const LtMatmul&) = delete;

  std::vector<cublasLtMatmulHeuristicResult_t> candidates() const {
    cublasLtMatmulPreference_t preference = nullptr;
    MILLRACE_CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
    MILLRACE_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                         &kMostWorkspace, sizeof kMostWorkspace));
    std::vector<cublasLtMatmulHeuristicResult_t> found(kMostCandidates);
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle_, operation_, first_, second_, out_, out_,
                                                                 preference, kMostCandidates, found.data(), &count);
    cublasLtMatmulPreferenceDestroy(preference);
    found.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<size_t>(count) : 0);
    return found;
  }
  void use(const cublasLtMatmulAlgo_t& algorithm, size_t workspace_bytes) {
    algorithm_ = algorithm;
    workspace_bytes_ = workspace_bytes;
  }
  // Takes an algorithm that was remembered, if it still works.
  bool use_known(const std::string& text) {
    cublasLtMatmulAlgo_t algorithm{};
    cublasLtMatmulHeuristicResult_t result{};
    if (!from_text(text, algorithm)) return false;
    if (cublasLtMatmulAlgoCheck(handle_, operation_, first_, second_, out_, out_, &algorithm, &result) !=
        CUBLAS_STATUS_SUCCESS) {
      return false;
    }
    use(algorithm, result.workspaceSize);
    return true;
  }

  size_t workspace_bytes() const override { return workspace_bytes_; }
  std::string name() const override {
    int id = 0;
    cublasLtMatmulAlgoConfigGetAttribute(&algorithm_, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id, nullptr);
    return fmt::format("cublasLt {}", id);
  }

  void run(const void* a, const void* b, const void* bias, void* d, void* workspace) const override {
    // The place of the bias is part of the description: one task at a time uses it, and sets it.
    if (spec_.bias) {
      MILLRACE_CUBLAS(
          cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
    }
    const float one = 1, zero = 0;
    MILLRACE_CUBLAS(cublasLtMatmul(handle_, operation_, &one, b, first_, a, second_, &zero, d, out_, d, out_,
                                   &algorithm_, workspace, workspace_bytes_, stream_));
  }

 private:
  template <typename T>
  void set(cublasLtMatmulDescAttributes_t name, T value) {
    MILLRACE_CUBLAS(cublasLtMatmulDescSetAttribute(operation_, name, &value, sizeof value));
  }
  static void layout(cublasLtMatrixLayout_t& made, const Stored& matrix, DType dtype) {
    MILLRACE_CUBLAS(cublasLtMatrixLayoutCreate(&made, type_of(dtype), static_cast<uint64_t>(matrix.width),
                                               static_cast<uint64_t>(matrix.rows), matrix.pitch));
  }

  cublasLtHandle_t handle_;
  cudaStream_t stream_;
  MatmulSpec spec_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t first_ = nullptr, second_ = nullptr, out_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
  size_t workspace_bytes_ = 0;
};

}  // namespace

MatmulLibrary::MatmulLibrary(const Device& device, const CudaOptions& options)
    : device_(device), tf32_(options.tf32), choices_(options.choices_file), on_measure_(options.on_measure) {
  MILLRACE_CUBLAS(cublasLtCreate(&handle_));
}

std::shared_ptr<const Matmul> MatmulLibrary::choose(const MatmulSpec& spec) {
  auto matmul = std::make_shared<LtMatmul>(handle_, device_.stream, spec, tf32_);
  const Stored stored_as[] = {stored_a(spec), stored_b(spec), stored_d(spec)};
  const bool has_room = stored_as[0].pitch != stored_as[0].width || stored_as[2].pitch != stored_as[2].width;
  const std::string work = fmt::format(
      "product {}x{}x{}{}{}{} {}{}{}{}, cuBLASLt {}", spec.rows, spec.inner, spec.columns,
      spec.transposes_a ? " a transposed" : "", spec.transposes_b ? " b transposed" : "",
      has_room ? fmt::format(" pitches {} {}", stored_as[0].pitch, stored_as[2].pitch) : "", name_of(spec.dtype),
      spec.bias ? " bias" : "", spec.relu ? " relu" : "", tf32_ ? "" : " full fp32", cublasLtGetVersion());
  auto use_known = [&] {
    const std::optional<std::string> known = choices_.find(work);
    return known && matmul->use_known(*known);
  };
  if (use_known()) return matmul;
  const Choices::Lock lock(choices_);
  if (lock.held()) {
    choices_.read_file();
    if (use_known()) return matmul;
  }

  const auto candidates = matmul->candidates();
  if (candidates.empty()) fail_run("cuBLASLt has no algorithm for {}", work);
  if (on_measure_) on_measure_(work);
  const auto bytes = [&](const Stored& matrix) {
    return static_cast<size_t>(matrix.elements()) * bytes_of(spec.dtype);
  };
  const TrialMemory a(bytes(stored_as[0])), b(bytes(stored_as[1])), d(bytes(stored_as[2]));
  const TrialMemory bias(static_cast<size_t>(spec.columns) * 4), workspace(kMostWorkspace);
  fill_random(device_, a.get(), stored_as[0].elements(), spec.dtype);
  fill_random(device_, b.get(), stored_as[1].elements(), spec.dtype);
  fill_random(device_, bias.get(), spec.columns, spec.dtype);
  const cublasLtMatmulHeuristicResult_t* best = nullptr;
  double best_s = std::numeric_limits<double>::infinity();
  for (const cublasLtMatmulHeuristicResult_t& candidate : candidates) {
    if (candidate.state != CUBLAS_STATUS_SUCCESS) continue;
    matmul->use(candidate.algo, candidate.workspaceSize);
    const double seconds =
        trial_seconds(device_, best_s, [&] { matmul->run(a.get(), b.get(), bias.get(), d.get(), workspace.get()); });
    if (seconds >= best_s) continue;
    best_s = seconds;
    best = &candidate;
  }
  if (!best) fail_run("none of cuBLASLt's algorithms for {} runs", work);
  matmul->use(best->algo, best->workspaceSize);
  choices_.remember(work, to_text(best->algo));
  return matmul;
}

}  // namespace millrace::backend::cuda
