// The published experiments predicted: what the simulator makes of each one's configuration on its cluster, and what
// the planner would choose there instead. GPUs are rooflines, scaled so that the single-device rows come out; each
// cluster has one link figure. Every other row is a prediction.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "millrace/plan/planner.h"
#include "millrace/plan/project_elastic.h"
#include "millrace/plan/published.h"

namespace millrace::plan {

// What was taken from outside: said with every result.
struct Calibration {
  std::string what;
  double value = 0;
  std::string from;
};

struct Reproduced {
  Published published;
  bool calibrates = false;  // a single-device row: met by construction
  std::optional<double> samples_per_s, memory_mib;
  std::string chosen;  // the planner's plan, as text
  double gain = 0;     // its predicted samples/s over those predicted for the row; 0: none was found
  std::string note;    // why there is no prediction, or the likely cause of a large difference
  std::optional<double> ratio() const {
    if (!samples_per_s || published.samples_per_s <= 0) return std::nullopt;
    return *samples_per_s / published.samples_per_s;
  }
};

struct Reproduction {
  std::vector<Calibration> calibration;
  std::vector<Reproduced> rows;
  std::vector<ElasticProjection> elastic;  // of PipeTransformer's runs; with choices only
};

// `with_choices`: also what the planner would choose, which takes most of the time.
Reproduction reproduce(bool with_choices = true);

// The cluster of an experiment, as it is calibrated.
Cluster published_cluster(const Published& experiment);

}  // namespace millrace::plan
