// Schedules that a chain of stages may have beside those of the modes: several stages per worker, and backward in two
// halves that fill each other's gaps. Compute actions only, of one synchronous update.
#pragma once

#include "millrace/schedule/schedule.h"

namespace millrace::schedule {

// Interleaved 1F1B (Narayanan et al., 2021): stage s runs on worker s % num_workers. Micro-batches go in groups of
// num_workers through a worker's stages, so their count must be a multiple of it where there are several stages each.
Schedule interleaved_schedule(int num_workers, int stages_per_worker, int microbatches);

// ZB-H1 (Qi et al., 2024): 1F1B with weight gradients held back until they fill the bubble; the memory of 1F1B.
Schedule zb_h1_schedule(int num_workers, int microbatches);

// ZB-V (Qi et al., 2024): worker w runs stages w and 2 * num_workers - 1 - w, so that the last stage's gradient starts
// where its activation began; no bubble where F, I and W take equal time, the memory of 1F1B.
Schedule zb_v_schedule(int num_workers, int microbatches);

}  // namespace millrace::schedule
