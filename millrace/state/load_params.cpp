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

// The tensors of a file that make a parameter: one of its name, or the three that Hugging Face keeps of what is one
// layer here.
std::vector<std::string> sources_of(const std::string& param, const std::map<std::string, Shape>& shapes) {
  if (shapes.contains(param)) return {param};
  const std::string fused = ".qkv.";
  const size_t at = param.find(fused);
  if (at == std::string::npos) return {};
  std::vector<std::string> names;
  for (const char* part : {".query.", ".key.", ".value."}) {
    names.push_back(std::string(param).replace(at, fused.size(), part));
    if (!shapes.contains(names.back())) return {};
  }
  return names;
}

// One below another.
Shape stacked(const std::vector<std::string>& names, const std::map<std::string, Shape>& shapes) {
  Shape first = shapes.at(names[0]);
  if (names.size() == 1) return first;
  Shape all{first[0] * static_cast<int64_t>(names.size())};
  for (int axis = 1; axis < first.rank(); ++axis) all.append(first[axis]);
  return all;
}

// Some files keep axes of extent 1 in front, for the batch.
Shape without_leading_ones(const Shape& shape) {
  Shape rest;
  for (int64_t extent : shape) {
    if (rest.rank() > 0 || extent != 1) rest.append(extent);
  }
  return rest;
}

bool fits(const Shape& stored, const Shape& wanted) {
  return stored == wanted || without_leading_ones(stored) == without_leading_ones(wanted);
}

void require_fit(const std::string& path, const graph::Graph& graph, std::map<std::string, Shape> shapes) {
  std::vector<std::string> missing, of_other_shape;
  for (const graph::Param& param : graph.params) {
    const std::vector<std::string> sources = sources_of(param.name, shapes);
    if (sources.empty()) {
      missing.push_back(param.name);
      continue;
    }
    const Shape stored = stacked(sources, shapes);
    for (const std::string& name : sources) shapes.erase(name);
    if (fits(stored, param.shape)) continue;
    of_other_shape.push_back(fmt::format("{} is {} and not {}", param.name, stored.str(), param.shape.str()));
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
  require_fit(path, graph, shapes);
  for (const graph::Param& param : graph.params) {
    std::vector<float> data;
    for (const std::string& source : sources_of(param.name, shapes)) {
      std::vector<float>& part = tensors.at(source).data;
      if (data.empty()) {
        data = std::move(part);
      } else {
        data.insert(data.end(), part.begin(), part.end());
      }
    }
    state.params[param.name] = {param.shape, std::move(data)};
  }
}

void check_params(const std::string& path, const graph::Graph& graph) { require_fit(path, graph, read_shapes(path)); }

}  // namespace millrace::state
