// A timeline as text: one row per worker, time from left to right.
#pragma once

#include <string>

#include "millrace/schedule/simulator.h"

namespace millrace::schedule {

// F, B, I and W are what a worker computes at the time of the column, '.' is waiting. A column is as long as the
// shortest action where that fits into `most_columns`.
std::string draw(const Schedule& schedule, const Timeline& timeline, int most_columns);

}  // namespace millrace::schedule
