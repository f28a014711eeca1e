#include <utility>

#include "millrace/state/fit_params.h"
#include "millrace/state/params_file.h"
#include "millrace/state/position_grid.h"
#include "millrace/state/safetensors.h"
#include "millrace/state/transpose.h"

namespace millrace::state {
namespace {

std::vector<float> values_of(const graph::Param& param, const Source& source, std::map<std::string, Tensor>& tensors) {
  std::vector<float> data;
  for (const std::string& name : source.tensors) {
    std::vector<float>& part = tensors.at(name).data;
    if (data.empty()) {
      data = std::move(part);
    } else {
      data.insert(data.end(), part.begin(), part.end());
    }
  }
  switch (source.change) {
    case Source::Change::None: break;
    case Source::Change::Transpose: return transposed(data, param.shape[1], param.shape[0]);
    case Source::Change::ResizeGrid: {
      const int64_t width = param.shape[1], places = static_cast<int64_t>(data.size()) / width;
      return resize_position_grid(data, width, grid_side(places), grid_side(param.shape[0]));
    }
  }
  return data;
}

}  // namespace

std::vector<std::string> load_params(const std::string& path, const graph::Graph& graph, State& state) {
  auto tensors = read_safetensors(path).tensors;
  std::map<std::string, Shape> shapes;
  for (const auto& [name, tensor] : tensors) shapes[name] = tensor.shape;
  Fit fit = fit_params(path, graph, shapes);
  for (size_t i = 0; i < graph.params.size(); ++i) {
    const graph::Param& param = graph.params[i];
    if (fit.sources[i].tensors.empty()) continue;
    state.params[param.name] = {param.shape, values_of(param, fit.sources[i], tensors)};
  }
  return std::move(fit.notes);
}

void check_params(const std::string& path, const graph::Graph& graph) { fit_params(path, graph, read_shapes(path)); }

}  // namespace millrace::state
