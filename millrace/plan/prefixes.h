// The prefixes of a graph of operators: sets that hold all that their members read. Where a model may be cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "millrace/profile/profile.h"

namespace millrace::plan {

// Operators as bits.
using OperatorSet = std::vector<uint64_t>;

inline bool contains(const OperatorSet& set, int op) { return set[op / 64] >> (op % 64) & 1; }
bool is_subset(const OperatorSet& part, const OperatorSet& whole);

struct Prefixes {
  std::vector<OperatorSet> sets;  // by size, the empty one first and all operators last; a subset before its superset
  bool complete = true;           // false: only those of the topological order
};

// All prefixes, or if they are more than `most`, those of the topological order.
Prefixes find_prefixes(const profile::Profile& profile, size_t most);

// Bytes of the values that operators in the prefix hand to operators outside.
int64_t crossing_bytes(const profile::Profile& profile, const OperatorSet& prefix);

}  // namespace millrace::plan
