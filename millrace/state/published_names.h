// What published files call the parameters of a model: torchvision's names are ours; Hugging Face's differ in what is
// one layer here, and from file to file.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "millrace/base/shape.h"
#include "millrace/graph/graph.h"

namespace millrace::state {

// Models of Hugging Face's that share their names: all but the head begins with `base`.
struct Family {
  std::string base;                        // "bert."; the file of a model without head leaves it out
  std::string blocks;                      // "bert.encoder.layer.", then a number: the repeated layers
  std::vector<std::string> other_tensors;  // beginnings of what files of other tasks hold besides
};

// Null for a model that is not of such a family.
const Family* family_of(const graph::Graph& graph);

// Every tensor of a file by the name that today's whole models give it: with the base's name where the file leaves it
// out everywhere, and layer norms with weight and bias where an old file says gamma and beta. Throws, naming the file,
// where two tensors would have one name.
std::map<std::string, std::string> today_names(const std::string& path, const Family* family, const graph::Graph& graph,
                                               const std::map<std::string, Shape>& shapes);

// The tensors that hold a parameter in a published file, one below another: queries, keys and values are one here.
std::vector<std::string> published_names(const graph::Param& param);

// The shape of each of them as its publisher writes it. The grid of a vision transformer and its class token have axes
// of extent 1 in front, for the batch.
Shape published_shape(const graph::Param& param);

// A table of places with one for the class token in front: made for one image size.
bool is_position_grid(const graph::Param& param);

}  // namespace millrace::state
