#include <cassert>
#include <utility>

#include "millrace/state/params_file.h"
#include "millrace/state/published_names.h"
#include "millrace/state/safetensors.h"
#include "millrace/state/transpose.h"

namespace millrace::state {

std::map<std::string, Tensor> published(const graph::Graph& graph, std::map<std::string, Tensor> params) {
  std::map<std::string, Tensor> tensors;
  for (const graph::Param& param : graph.params) {
    std::vector<float> data = std::move(params.at(param.name).data);
    assert(static_cast<int64_t>(data.size()) == param.shape.elements());
    if (param.stored_transposed) data = transposed(data, param.shape[0], param.shape[1]);
    const std::vector<std::string> names = published_names(param);
    const Shape shape = published_shape(param);
    if (names.size() == 1) {
      tensors[names[0]] = {shape, std::move(data)};
      continue;
    }
    auto next = data.begin();
    for (const std::string& name : names) {
      tensors[name] = {shape, std::vector<float>(next, next + shape.elements())};
      next += shape.elements();
    }
  }
  return tensors;
}

void write_params(const std::string& path, const graph::Graph& graph, std::map<std::string, Tensor> params) {
  // Hugging Face's loader asks for the format, and torch's is what all of these files have.
  write_safetensors(path, published(graph, std::move(params)), {{"format", "pt"}});
}

}  // namespace millrace::state
