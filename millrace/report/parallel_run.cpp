#include "millrace/report/parallel_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "millrace/report/units.h"

namespace millrace::report {
namespace {

using nlohmann::ordered_json;
using runtime::WorkerRecord;

double sum(const ParallelRun& run, double WorkerRecord::*seconds) {
  double total = 0;
  for (const WorkerRecord& worker : run.workers) total += worker.*seconds;
  return total;
}

// A run that was broken off has spans of a list whose time was never counted, so a share may lie outside.
std::optional<double> share(double part, double whole) {
  if (!(whole > 0)) return std::nullopt;
  return std::clamp(part / whole, 0.0, 1.0);
}

ordered_json or_null(std::optional<double> value) { return value ? ordered_json(*value) : ordered_json(nullptr); }

std::string percent(std::optional<double> value) { return value ? human_percent(*value) : "-"; }

ordered_json worker_json(const WorkerRecord& worker) {
  return {{"worker", worker.worker},
          {"device", worker.device},
          {"host", worker.host},
          {"stages", worker.stages},
          {"stage", worker.stages.empty() ? ordered_json(nullptr) : ordered_json(worker.stages[0])},
          {"peak_bytes", worker.planned_bytes},
          {"busy_s", worker.busy_s}};
}

ordered_json links_json(const ParallelRun& run) {
  ordered_json links = ordered_json::array();
  for (const WorkerRecord& worker : run.workers) {
    for (size_t to = 0; to < worker.bytes_sent.size(); ++to) {
      if (worker.bytes_sent[to] == 0) continue;
      links.push_back({{"from", worker.worker}, {"to", to}, {"bytes", worker.bytes_sent[to]}});
    }
  }
  return links;
}

}  // namespace

std::optional<double> bubble_share(const ParallelRun& run) {
  const double train_s = sum(run, &WorkerRecord::train_s);
  return share(train_s - sum(run, &WorkerRecord::busy_s) - sum(run, &WorkerRecord::data_s), train_s);
}

std::optional<double> comm_share(const ParallelRun& run) {
  return share(sum(run, &WorkerRecord::transfer_s), sum(run, &WorkerRecord::train_s));
}

std::optional<double> comm_hidden_share(const ParallelRun& run) {
  const double transfer_s = sum(run, &WorkerRecord::transfer_s);
  return share(transfer_s - sum(run, &WorkerRecord::exposed_s), transfer_s);
}

std::optional<IdleShares> idle_shares(const ParallelRun& run) {
  const std::optional<double> bubble = bubble_share(run);
  if (!bubble || !run.replay || run.step_s <= 0) return std::nullopt;
  // One cause after another, none more than what the earlier ones leave.
  double left = *bubble;
  const auto take = [&](double share) {
    const double taken = std::clamp(share, 0.0, left);
    left -= taken;
    return taken;
  };
  IdleShares idle;
  idle.dependency = take((run.replay->balanced_step_s - run.replay->busy_s) / run.step_s);
  idle.imbalance = take((run.replay->step_s - run.replay->balanced_step_s) / run.step_s);
  idle.communication = take(share(sum(run, &WorkerRecord::exposed_s), sum(run, &WorkerRecord::train_s)).value_or(0));
  idle.straggler = left;
  return idle;
}

int64_t bytes_sent(const WorkerRecord& worker) {
  return std::accumulate(worker.bytes_sent.begin(), worker.bytes_sent.end(), int64_t{0});
}

int64_t bytes_sent(const ParallelRun& run) {
  int64_t bytes = 0;
  for (const WorkerRecord& worker : run.workers) bytes += bytes_sent(worker);
  return bytes;
}

void add_json(ordered_json& json, const ParallelRun& run) {
  json["mode"] = run.mode;
  json["weight_delay"] = run.weight_delay;
  if (!run.gpus_exchange.empty()) json["gpus_exchange"] = run.gpus_exchange;
  json["bubble_share"] = or_null(bubble_share(run));
  json["comm_share"] = or_null(comm_share(run));
  json["comm_hidden_share"] = or_null(comm_hidden_share(run));
  json["simulated_step_ms"] = run.replay ? ordered_json(run.replay->step_s * 1e3) : ordered_json(nullptr);
  const std::optional<IdleShares> idle = idle_shares(run);
  json["idle"] = idle ? ordered_json{{"dependency", idle->dependency},
                                     {"imbalance", idle->imbalance},
                                     {"communication", idle->communication},
                                     {"straggler", idle->straggler}}
                      : ordered_json(nullptr);
  json["bytes_sent"] = bytes_sent(run);
  json["links"] = links_json(run);
  json["workers"] = ordered_json::array();
  for (const WorkerRecord& worker : run.workers) json["workers"].push_back(worker_json(worker));
}

void add_rows(Table& table, const ParallelRun& run, int64_t steps) {
  if (run.workers.size() < 2) return;
  table.add({"mode", fmt::format("{}, {} workers", run.mode, run.workers.size())});
  table.add({"bubble", percent(bubble_share(run))});
  const std::optional<double> hidden = comm_hidden_share(run);
  table.add({"communication", fmt::format("{}{}, {} a step", percent(comm_share(run)),
                                          hidden ? fmt::format(" ({} of it hidden)", human_percent(*hidden)) : "",
                                          human_bytes(bytes_sent(run) / std::max<int64_t>(steps, 1)))});
}

std::string worker_table(const ParallelRun& run) {
  if (run.workers.size() < 2) return {};
  Table table({"worker", "device", "stages", "busy", "waiting", "planned", "sent"});
  for (const WorkerRecord& worker : run.workers) {
    table.add({std::to_string(worker.worker), worker.device, fmt::format("{}", fmt::join(worker.stages, ", ")),
               percent(share(worker.busy_s, worker.train_s)), percent(share(worker.waited_s, worker.train_s)),
               human_bytes(worker.planned_bytes), human_bytes(bytes_sent(worker))});
  }
  return table.str();
}

}  // namespace millrace::report
