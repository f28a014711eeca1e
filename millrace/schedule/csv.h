// Compute actions as text: one row per worker, one cell per action, STAGE then F, B, I or W then MICRO-BATCH.
//
//   0F0,0F1,0B0,0B1
//   ,1F0,1B0,1F1,1B1
//
// Empty cells stand for idle time and mean nothing; so do blank lines and what follows a '#'.
#pragma once

#include <string>

#include "millrace/schedule/schedule.h"

namespace millrace::schedule {

// Messages, reductions and steps are left out; the parts of a Backward are one B.
std::string to_csv(const Schedule& schedule);

// Compute actions of one synchronous update. The pipeline follows from the cells: a stage runs on the rows that name
// it, values go from each stage to the next. Rows that run the same micro-batches of a stage split them; rows that
// divide them take turns. `where` names the text in messages.
Schedule read_csv(const std::string& text, const std::string& where);

}  // namespace millrace::schedule
