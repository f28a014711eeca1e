// elastic.batch: grow. How the batch and the rate of learning follow the number of replicas.
#pragma once

#include <cstdint>
#include <optional>

#include "millrace/job/job.h"

namespace millrace::plan {

struct GrownBatch {
  int64_t batch = 0;
  double rate_factor = 1;  // by which rates of learning change
};

// A replica's part of the batch stays as it is: with half as many replicas the batch shrinks. The rate follows the
// batch with SGD, and its root with optimizers that scale gradients by their own size. Nothing where there are as many
// replicas as before, or the parts would not come out even.
std::optional<GrownBatch> grow_batch(const job::Job& now, int replicas_before, int replicas);

// Batch and rates of the job: the first and, where the schedule ends above 0, the last.
void apply(const GrownBatch& grown, job::Job& job);

}  // namespace millrace::plan
