#include <limits>
#include <memory>

#include "millrace/backend/cuda/conv.h"
#include "millrace/backend/cuda/host_calls.h"
#include "millrace/backend/cuda/trial.h"
#include "millrace/base/error.h"

namespace millrace::backend::cuda {
namespace {

// What a convolution may use beside its operands; more is rarely faster and never free.
constexpr size_t kMostWorkspace = size_t{512} << 20;

}  // namespace

ConvLibrary::ConvLibrary(const Device& device, const CudaOptions& options)
    : device_(device), choices_(options.choices_file), on_measure_(options.on_measure) {
  wishes_.tensor_cores_for_f32 = options.tf32;
  wishes_.deterministic = options.deterministic;
  MILLRACE_CUDNN(cudnnCreate(&handle_));
  MILLRACE_CUDNN(cudnnSetStream(handle_, device.stream));
}

ConvLibrary::Chosen ConvLibrary::find(const std::string& name, const std::vector<Way>& ways) {
  for (size_t way = 0; way < ways.size(); ++way) {
    const std::string prefix = ways[way].name + " ";
    if (name.rfind(prefix, 0) != 0) continue;
    for (const OperationGraph::Engine& engine : ways[way].graph->engines(handle_, wishes_)) {
      if (prefix + engine.name == name) return {ConvPlan::make(handle_, engine), way, name};
    }
  }
  return {};
}

ConvLibrary::Chosen ConvLibrary::choose(const std::string& work, const std::vector<Way>& ways,
                                        const std::vector<Operand>& operands) {
  const std::string question = fmt::format("{}, {}{}cuDNN {}", work, wishes_.tensor_cores_for_f32 ? "" : "full fp32, ",
                                           wishes_.deterministic ? "deterministic, " : "", cudnnGetVersion());
  // Layers are alike more often than not, and a plan takes long to make.
  Chosen& made = made_[question];
  if (made.plan) return made;
  auto known = [&]() -> Chosen {
    const std::optional<std::string> name = choices_.find(question);
    return name ? find(*name, ways) : Chosen{};
  };
  if (made = known(); made.plan) return made;
  const Choices::Lock lock(choices_);
  if (lock.held()) {
    choices_.read_file();
    if (made = known(); made.plan) return made;
  }

  if (on_measure_) on_measure_(work);
  std::vector<std::unique_ptr<TrialMemory>> held;
  std::vector<int64_t> ids;
  std::vector<void*> memory;
  for (const Operand& operand : operands) {
    ids.push_back(operand.id);
    if (operand.value) {
      memory.push_back(const_cast<void*>(operand.value));
      continue;
    }
    held.push_back(std::make_unique<TrialMemory>(static_cast<size_t>(operand.elements) * bytes_of(operand.dtype)));
    memory.push_back(held.back()->get());
    fill_random(device_, memory.back(), operand.elements, operand.dtype);
  }
  Chosen best;
  double best_s = std::numeric_limits<double>::infinity();
  for (size_t way = 0; way < ways.size(); ++way) {
    for (const OperationGraph::Engine& engine : ways[way].graph->engines(handle_, wishes_)) {
      const std::shared_ptr<const ConvPlan> plan = ConvPlan::make(handle_, engine);
      if (!plan || plan->workspace_bytes() > kMostWorkspace) continue;
      const TrialMemory workspace(plan->workspace_bytes());
      const auto count = static_cast<std::ptrdiff_t>(ways[way].operands);
      const std::shared_ptr<const Descriptor> pack =
          plan->pack({ids.begin(), ids.begin() + count}, {memory.begin(), memory.begin() + count}, workspace.get());
      const double seconds = trial_seconds(device_, best_s, [&] {
        plan->run(handle_, *pack);
        if (ways[way].after) ways[way].after(memory);
      });
      if (seconds >= best_s) continue;
      best_s = seconds;
      best = {plan, way, ways[way].name + " " + engine.name};
    }
  }
  if (best.plan) choices_.remember(question, best.name);
  return made = best;
}

}  // namespace millrace::backend::cuda
