#include "millrace/plan/grow_batch.h"

#include <cmath>

namespace millrace::plan {

std::optional<GrownBatch> grow_batch(const job::Job& now, int replicas_before, int replicas) {
  if (replicas == replicas_before || now.batch * replicas % replicas_before != 0) return std::nullopt;
  const double growth = static_cast<double>(replicas) / replicas_before;
  return GrownBatch{now.batch * replicas / replicas_before,
                    now.optimizer.kind == job::Algorithm::Sgd ? growth : std::sqrt(growth)};
}

void apply(const GrownBatch& grown, job::Job& job) {
  job.batch = grown.batch;
  job.optimizer.lr *= grown.rate_factor;
  job.schedule.end_lr *= grown.rate_factor;
}

}  // namespace millrace::plan
