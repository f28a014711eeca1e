// What the workers of a run came to together: where their time went and what they sent each other.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "millrace/report/table.h"
#include "millrace/runtime/replay.h"
#include "millrace/runtime/worker_record.h"

namespace millrace::report {

struct ParallelRun {
  std::string mode = "dp";
  std::vector<int> weight_delay;  // per stage: updates that a minibatch's weights are behind
  std::vector<runtime::WorkerRecord> workers;
  std::string gpus_exchange = {};              // how, where each has a process of its own
  std::optional<runtime::Replay> replay = {};  // by the schedule and the times of its actions alone
  double step_s = 0;                           // the mean of the run
};

// Shares are means over the workers, weighted by their training time; empty where there is no time to share.

// Of the training time, what was neither in kernels nor taking data.
std::optional<double> bubble_share(const ParallelRun& run);
// Of the training time, what messages and sums were on their way.
std::optional<double> comm_share(const ParallelRun& run);
// Of the time that messages and sums were on their way, what nobody waited for.
std::optional<double> comm_hidden_share(const ParallelRun& run);

// Where the bubble comes from, as shares of the training time that sum up to it.
struct IdleShares {
  double dependency = 0;  // the schedule's own: there even if all workers had as much to do and messages took no time
  double imbalance = 0;   // some workers have more to do than others
  double communication = 0;  // messages and sums on their way
  double straggler = 0;      // the rest: actions that took longer than they mostly do, and handing over
};
std::optional<IdleShares> idle_shares(const ParallelRun& run);

int64_t bytes_sent(const runtime::WorkerRecord& worker);
int64_t bytes_sent(const ParallelRun& run);

// Keys of summary.json.
void add_json(nlohmann::ordered_json& json, const ParallelRun& run);

// Rows of the summary's table; none for one worker.
void add_rows(Table& table, const ParallelRun& run, int64_t steps);
// One row per worker; empty for one worker.
std::string worker_table(const ParallelRun& run);

}  // namespace millrace::report
