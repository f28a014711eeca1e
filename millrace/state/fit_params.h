// How a published file's tensors become a model's parameters, found from names and shapes alone: what fits is decided
// here, before any data is read.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "millrace/base/shape.h"
#include "millrace/graph/graph.h"

namespace millrace::state {

// What one parameter is made of.
struct Source {
  enum class Change { None, Transpose, ResizeGrid };
  std::vector<std::string> tensors;  // as the file calls them, one below another; none: the parameter starts anew
  Change change = Change::None;
};

struct Fit {
  std::vector<Source> sources;     // one for each of the graph's parameters
  std::vector<std::string> notes;  // what a user should know: what starts anew, is resized or is not used
};

// A head (Param::is_head) that the file does not have, or has for other classes, starts anew, layer by layer; the
// places of a vision transformer are resized; heads of other tasks are not used. Anything else that is missing,
// unexpected or of another shape: throws one std::invalid_argument that names it, and the keys to write where a size is
// another.
Fit fit_params(const std::string& path, const graph::Graph& graph, const std::map<std::string, Shape>& shapes);

}  // namespace millrace::state
