// Proves a lowered schedule before it runs: every micro-batch is computed once by each replica that takes it, every
// message is posted, sent and received once, no order of events can stop the workers, no buffer is written while it is
// needed or read before it is written, and every action finds the version of the weights that its mode promises.
#pragma once

#include <optional>
#include <string>

#include "millrace/schedule/schedule.h"

namespace millrace::schedule {

struct Fault {
  int worker = -1;  // -1: of no single list
  int action = -1;  // place in the worker's list; -1: of no single action
  std::string what;
};

// The first fault found, or none.
std::optional<Fault> find_fault(const Schedule& lowered);
// The same for lists of compute actions, before they are lowered: what is missing, double, or out of order by itself.
std::optional<Fault> find_compute_fault(const Schedule& compute);

// One line: where, what, and the numbers.
std::string to_text(const Schedule& schedule, const Fault& fault);

// Refuses a faulty schedule.
void prove(const Schedule& lowered);

}  // namespace millrace::schedule
