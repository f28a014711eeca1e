#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include "millrace/base/error.h"
#include "millrace/state/safetensors.h"

namespace millrace::state {
namespace {

// "a, b, c and 4 more"
std::string first_few(std::vector<std::string> names) {
  constexpr size_t kFew = 3;
  const std::string rest = names.size() > kFew ? fmt::format(" and {} more", names.size() - kFew) : "";
  if (names.size() > kFew) names.resize(kFew);
  return fmt::format("{}{}", fmt::join(names, ", "), rest);
}

void require_fit(const std::string& path, const graph::Graph& graph, std::map<std::string, Shape> shapes) {
  std::vector<std::string> missing, of_other_shape;
  for (const graph::Param& param : graph.params) {
    const auto found = shapes.extract(param.name);
    if (!found) {
      missing.push_back(param.name);
    } else if (found.mapped() != param.shape) {
      of_other_shape.push_back(fmt::format("{} is {} and not {}", param.name, found.mapped().str(), param.shape.str()));
    }
  }
  std::vector<std::string> unexpected;
  for (const auto& [name, shape] : shapes) unexpected.push_back(name);

  std::vector<std::string> faults;
  if (!missing.empty()) faults.push_back("missing " + first_few(missing));
  if (!unexpected.empty()) faults.push_back("unexpected " + first_few(unexpected));
  if (!of_other_shape.empty()) faults.push_back("of another shape " + first_few(of_other_shape));
  if (!faults.empty()) {
    fail_input("{}: does not hold the parameters of {}: {}", path, graph.name, fmt::join(faults, "; "));
  }
}

}  // namespace

void load_params(const std::string& path, const graph::Graph& graph, State& state) {
  auto tensors = read_safetensors(path).tensors;
  std::map<std::string, Shape> shapes;
  for (const auto& [name, tensor] : tensors) shapes[name] = tensor.shape;
  require_fit(path, graph, std::move(shapes));
  for (auto& [name, tensor] : tensors) state.params[name] = std::move(tensor);
}

void check_params(const std::string& path, const graph::Graph& graph) { require_fit(path, graph, read_shapes(path)); }

}  // namespace millrace::state
