// The learning rate of a step: linear warm-up, then the schedule's decay over the steps that remain. A pure
// function, so a resumed run continues where it was.
#pragma once

#include <cstdint>

#include "millrace/job/job.h"

namespace millrace::job {

// `step` counts from 0; `total_steps` includes the warm-up. Step k of n warm-up steps has lr * (k + 1) / n.
double learning_rate(const Optimizer& optimizer, const Schedule& schedule, int64_t step, double steps_per_epoch,
                     int64_t total_steps);

}  // namespace millrace::job
