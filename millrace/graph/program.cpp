#include "millrace/graph/program.h"

namespace millrace::graph {

const char* name_of(Pass pass) {
  switch (pass) {
    case Pass::Forward: return "F";
    case Pass::Evaluate: return "E";
    case Pass::InputGrad: return "I";
    case Pass::WeightGrad: return "W";
    case Pass::Update: return "U";
  }
  return "?";
}

const char* name_of(BufferRole role) {
  switch (role) {
    case BufferRole::Input: return "inputs";
    case BufferRole::Activation: return "activations";
    case BufferRole::Gradient: return "activation gradients";
    case BufferRole::Weight: return "weights";
    case BufferRole::WeightGradient: return "weight gradients";
    case BufferRole::GradientSum: return "gradient sums";
    case BufferRole::Velocity: return "optimizer";
    case BufferRole::Statistic: return "statistics";
    case BufferRole::Metric: return "metrics";
  }
  return "?";
}

}  // namespace millrace::graph
