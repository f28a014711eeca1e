// What a stage costs and holds: a slice of the operators in topological order, on some devices, at some depth of the
// pipeline. The model that search.h minimises.
//
// Time of a micro-batch (a minibatch, in asynchronous modes):
//   compute   operators' time over replicas and the speed of the slowest of them. Replicas split the rows evenly, or
//             take minibatches in turn: on average the same.
//   transfer  values that come in and go out, as their gradients do the other way. A link carries both directions at
//             once; a stage has as many links as it has members at that level of the cluster.
//   exposed   a ring sum of the gradients over the replicas, less the backward pass it hides behind.
//   update    of the weights, on every replica.
// and of the stage in a step:
//   busy      asynchronous: max(compute + exposed + update, transfer); where minibatches are taken in turn, a round of
//             them has one sum and one update. Synchronous, m micro-batches: (m - 1) max(compute, transfer) + exposed +
//             update.
//   fill      synchronous: compute + both transfers to the next stage, which each stage adds once to the step.
// A step takes the largest busy, plus the sum of fill.
//
// A value that crosses several stages is counted at every cut it crosses.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "millrace/job/job.h"
#include "millrace/plan/cluster.h"
#include "millrace/profile/profile.h"

namespace millrace::plan {

struct CostOptions {
  job::Mode mode = job::Mode::OneFOneB;
  int microbatches = 1;        // of one update; counts in synchronous modes. The profile is of one of them.
  double optimizer_slots = 1;  // values the optimizer keeps per parameter: 1 for momentum
  int64_t reserved_bytes = 0;  // of each device: what is not for training
  bool synchronous() const { return mode != job::Mode::PipeDream && mode != job::Mode::Ssp; }
  bool in_turn() const { return mode == job::Mode::PipeDream; }
};

// Devices of a stage, and the way between them and to their neighbours.
struct Place {
  std::vector<int> devices;
  int replicas = 1;
  double speed = 1;         // of the slowest
  double memory_bytes = 0;  // of the smallest, less what is reserved
  SumCost sum;
  double in_per_byte = 0, in_latency_s = 0;    // from the stage before
  double out_per_byte = 0, out_latency_s = 0;  // to the stage after
};

// Where in the pipeline a stage stands: both counts include it.
struct Depth {
  int stages = 1;   // from here to the last
  int devices = 1;  // of those stages
};

struct StageMemory {
  double weights = 0;  // all versions
  double gradients = 0;
  double optimizer = 0;
  double activations = 0;  // of all micro-batches in flight, with what came in
  double buffers = 0;      // gradients that come in and go out
  double workspace = 0;    // of kernels, and gradients within the stage
  int versions = 1;
  int in_flight = 1;
  double state = 0;  // what a checkpoint is made of: part of the above
  double total() const { return weights + gradients + optimizer + activations + buffers + workspace; }
};

struct StageCost {
  double compute_s = 0, transfer_s = 0, exposed_s = 0, update_s = 0;
  double busy_s = 0, fill_s = 0;
  StageMemory memory;
};

// The largest value of any range, in constant time.
class RangeMax {
 public:
  void assign(std::vector<double> values);
  double of(int begin, int end) const {
    const auto& spans = powers_[std::bit_width(static_cast<unsigned>(end - begin)) - 1];
    return std::max(spans[begin], spans[end - (1 << (std::bit_width(static_cast<unsigned>(end - begin)) - 1))]);
  }

 private:
  std::vector<std::vector<double>> powers_;  // [k][i]: of the 2^k values from i on
};

class StageCosts {
 public:
  // Refuses a profile without operators, a cluster without devices or with a level that has no bandwidth.
  StageCosts(const profile::Profile& profile, const Cluster& cluster, const CostOptions& options);

  // Whether a stage may begin with the operator: none that share weights are on both sides.
  bool may_cut(int op) const { return cuttable_[op]; }
  int most_stages() const { return static_cast<int>(std::count(cuttable_.begin() + 1, cuttable_.end(), true)); }
  int num_operators() const { return static_cast<int>(seconds_.size()) - 1; }
  const CostOptions& options() const { return options_; }

  // `before` and `after`: devices of which one may be the nearest of the neighbouring stage; empty: no neighbour.
  Place place(std::vector<int> devices, const std::vector<int>& before, const std::vector<int>& after) const;

  // Operators begin..end-1.
  StageCost evaluate(int begin, int end, const Place& place, Depth depth) const;

  // Seconds of forward and backward on a device of speed 1, and what grows with the slice: for bounds.
  double seconds(int begin, int end) const { return seconds_[end] - seconds_[begin]; }
  double least_memory(int begin, int end, const Place& place, Depth depth) const;

  // Replicas that share the rows of a micro-batch.
  int sharers(const Place& place) const { return options_.in_turn() ? 1 : place.replicas; }
  // The time that work takes at least, on devices of this speed together, as part of busy and of fill.
  double least_busy(double seconds, double speed) const {
    return (options_.synchronous() ? options_.microbatches - 1 : 1) * seconds / speed;
  }
  double least_fill(double seconds, double speed) const { return options_.synchronous() ? seconds / speed : 0; }

 private:
  int level_between(int a, int b) const;
  int nearest_level(const std::vector<int>& stage, const std::vector<int>& others) const;
  int versions(const Place& place, Depth depth) const;
  int in_flight(const Place& place, Depth depth) const;

  const Cluster& cluster_;
  CostOptions options_;
  std::vector<int> members_;                                         // per level: devices of one member
  std::vector<double> seconds_, backward_, update_, params_, kept_;  // sums of the operators before each
  std::vector<double> crossing_;                                     // bytes at each cut
  std::vector<bool> cuttable_;
  RangeMax workspace_, output_;  // per operator
};

}  // namespace millrace::plan
