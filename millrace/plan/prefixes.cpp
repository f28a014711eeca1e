#include "millrace/plan/prefixes.h"

#include <set>

namespace millrace::plan {
namespace {

OperatorSet with(OperatorSet set, int op) {
  set[op / 64] |= uint64_t{1} << (op % 64);
  return set;
}

Prefixes topological_prefixes(int num_operators) {
  Prefixes prefixes;
  prefixes.sets.emplace_back((num_operators + 63) / 64);
  for (int op = 0; op < num_operators; ++op) prefixes.sets.push_back(with(prefixes.sets.back(), op));
  return prefixes;
}

}  // namespace

bool is_subset(const OperatorSet& part, const OperatorSet& whole) {
  for (size_t word = 0; word < part.size(); ++word) {
    if ((part[word] & ~whole[word]) != 0) return false;
  }
  return true;
}

Prefixes find_prefixes(const profile::Profile& profile, size_t most) {
  const int num_operators = static_cast<int>(profile.operators.size());
  std::vector<std::vector<int>> reads(num_operators);
  for (const profile::Edge& edge : profile.edges) reads[edge.to].push_back(edge.from);
  Prefixes prefixes;
  std::set<OperatorSet> of_size{OperatorSet((num_operators + 63) / 64)};
  for (int size = 0; size <= num_operators; ++size) {
    prefixes.sets.insert(prefixes.sets.end(), of_size.begin(), of_size.end());
    std::set<OperatorSet> larger;
    for (const OperatorSet& set : of_size) {
      for (int op = 0; op < num_operators; ++op) {
        if (contains(set, op)) continue;
        bool ready = true;
        for (int from : reads[op]) ready = ready && contains(set, from);
        if (ready) larger.insert(with(set, op));
        if (prefixes.sets.size() + larger.size() > most) {
          prefixes = topological_prefixes(num_operators);
          prefixes.complete = false;
          return prefixes;
        }
      }
    }
    of_size = std::move(larger);
  }
  return prefixes;
}

int64_t crossing_bytes(const profile::Profile& profile, const OperatorSet& prefix) {
  std::vector<bool> crosses(profile.operators.size(), false);
  for (const profile::Edge& edge : profile.edges) {
    if (contains(prefix, edge.from) && !contains(prefix, edge.to)) crosses[edge.from] = true;
  }
  int64_t bytes = 0;
  for (size_t op = 0; op < crosses.size(); ++op) {
    if (crosses[op]) bytes += profile.operators[op].output_bytes;
  }
  return bytes;
}

}  // namespace millrace::plan
