// How many buffers replicas need for their compute actions, when micro-batch l must live in buffer l % slots.
#pragma once

#include <vector>

#include "millrace/schedule/schedule.h"

namespace millrace::schedule {

struct SlotCounts {
  std::vector<int> activations;  // per stage
  int gradients = 1;
};

// `spare` more than are alive at once; and more than that where micro-batches do not end in the order they begin and
// would meet in one buffer.
SlotCounts count_slots(const Schedule& compute, int spare);

}  // namespace millrace::schedule
