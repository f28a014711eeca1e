// Where the steps of a run lie in its epochs. A batch that grows makes steps of several sizes: those since some step
// are as large as now, and those before it filled whole epochs.
#pragma once

#include <cstdint>

namespace millrace::job {

// Steps have their size since this one, the first of an epoch.
struct SizedSince {
  int64_t step = 0;
  int64_t epoch = 0;
  bool operator==(const SizedSince&) const = default;
};

struct Calendar {
  int64_t steps_per_epoch = 1;
  SizedSince since = {};

  // The number that a step would have if all before it had been as large: epochs, rates and the place in the data
  // follow from it. And back.
  int64_t even(int64_t step) const { return step - since.step + since.epoch * steps_per_epoch; }
  int64_t step_of_even(int64_t even) const { return even + since.step - since.epoch * steps_per_epoch; }

  double epoch_at(int64_t step) const { return static_cast<double>(even(step)) / static_cast<double>(steps_per_epoch); }
  int64_t index_in_epoch(int64_t step) const { return even(step) % steps_per_epoch; }
};

}  // namespace millrace::job
