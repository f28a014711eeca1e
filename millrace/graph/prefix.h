// Where a program may begin if what its first frozen layers make is known already.
#pragma once

#include <optional>

#include "millrace/graph/program.h"

namespace millrace::graph {

struct PrefixEnd {
  int layers = 0;
  size_t node = 0;           // the first behind them
  BufferId output = kNone;   // the only value that is read behind them
  bool reads_input = false;  // the features are read behind them too
};

// Nothing where the stage does not begin with the model, or the layers do not end in one value (a model that branches),
// or they do not stand still.
std::optional<PrefixEnd> prefix_end(const Graph& graph, const Program& program, int layers);

}  // namespace millrace::graph
