// Where a model is cut into stages. A cut is the first operator of each stage: {0, 12} is two stages, the second
// beginning with operator 12. Every stage has at least one operator.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "millrace/graph/graph.h"

namespace millrace::plan {

// How many of the model's own operators each operator stands for: conv + ReLU is 2, batch norm + add + ReLU is 3.
std::vector<double> operator_weights(const graph::Graph& fused);

// Forward arithmetic of each operator; one without multiplications counts an operation per value it writes.
std::vector<double> flop_weights(const graph::Graph& graph);

// Stage k takes shares[k] of the total weight: cut where the running sum is nearest.
std::vector<int> cut_by_shares(std::span<const double> op_weights, std::span<const double> shares);

// The cut whose slowest stage (its weight over its speed) is fastest; among equals the one that cuts first.
std::vector<int> balanced_cut(std::span<const double> op_weights, std::span<const double> speeds);

// Each further stage begins with the layer named: an operator, or all below a prefix ("layer3" is "layer3.0.conv1",
// ...), whose first is meant.
std::vector<int> cut_by_names(const graph::Graph& graph, const std::vector<std::string>& cuts);

// Whether the entries of PipeDream's module_to_stage_map stand for the modules its own generator made, one for each
// stage and one for the loss ([0, 1, 1] for two stages), and not for this model's operators. Such a file says where
// stages run, not where the model is cut. With one stage ([0, 0, 0]) there is nothing to cut.
bool has_generated_modules(const graph::Graph& graph, const std::vector<int>& module_to_stage);

// The stage of each of the model's own operators in order, as a PipeDream stage file may give it. A fused operator
// belongs to the stage of its first part.
std::vector<int> cut_by_modules(const graph::Graph& graph, const std::vector<int>& module_to_stage);

}  // namespace millrace::plan
