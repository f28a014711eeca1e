// How each device likes its programs.
#pragma once

#include "millrace/graph/program.h"
#include "millrace/job/job.h"

namespace millrace::backend {

constexpr graph::Style style_of(job::Device device) {
  // A GPU updates all parameters in one launch, and its time goes into passes over memory: one more sum costs more
  // than the reads it needs, and what one pass remakes need not be kept for a whole step.
  if (device == job::Device::Cuda) {
    return {.late_updates = true, .sums_in_norm = true, .sums_in_conv = true, .remakes_norm = true};
  }
  // A core has no launches to save; the sum in batch norm spares it a pass too.
  return {.sums_in_norm = true};
}

}  // namespace millrace::backend
