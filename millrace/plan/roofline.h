// What operators cost on a device that is not here, from its rates alone: every node of a training step takes the time
// of its arithmetic or of the bytes it touches, whichever is longer.
#pragma once

#include "millrace/graph/program.h"
#include "millrace/profile/profile.h"

namespace millrace::plan {

struct DeviceRates {
  double flops_per_s = 0;       // of convolutions and linear layers
  double bytes_per_s = 0;       // of device memory
  int value_bytes = 4;          // of an activation or gradient: 2 in half precision
  double seconds_per_node = 0;  // that every node takes besides
};

profile::Profile roofline_profile(const graph::Graph& graph, const DeviceRates& rates,
                                  const graph::UpdateRule& rule = {});

}  // namespace millrace::plan
