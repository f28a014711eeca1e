// Who takes which micro-batch, and which update and version it belongs to.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "millrace/schedule/schedule.h"

namespace millrace::schedule {

Pipeline chain(job::Mode mode, int num_stages, int microbatches) {
  Pipeline pipeline;
  pipeline.mode = mode;
  pipeline.num_workers = num_stages;
  pipeline.microbatches = microbatches;
  for (int s = 0; s < num_stages; ++s) {
    pipeline.stages.push_back({s});
    if (s > 0) pipeline.edges.push_back({s - 1, s});
    pipeline.versions.push_back(pipeline.synchronous() ? 1 : num_stages - s);
    pipeline.buckets.push_back(1);
  }
  return pipeline;
}

Rows replica_rows(const Pipeline& pipeline, int stage, int replica) {
  if (pipeline.replicas == job::Replicas::RoundRobin) return {0, pipeline.rows};
  int64_t before = replica, own = 1, all = pipeline.num_replicas(stage);
  if (!pipeline.shares.empty()) {
    const std::vector<int>& shares = pipeline.shares[stage];
    before = std::accumulate(shares.begin(), shares.begin() + replica, int64_t{0});
    own = shares[replica];
    all = std::accumulate(shares.begin(), shares.end(), int64_t{0});
  }
  return {pipeline.rows * before / all, pipeline.rows * (before + own) / all};
}

bool takes(const Pipeline& pipeline, int stage, int replica, int microbatch) {
  return pipeline.replicas == job::Replicas::Split || microbatch % pipeline.num_replicas(stage) == replica;
}

int local_index(const Pipeline& pipeline, int stage, int microbatch) {
  return pipeline.replicas == job::Replicas::Split ? microbatch : microbatch / pipeline.num_replicas(stage);
}

int update_of(const Pipeline& pipeline, int stage, int microbatch) {
  // Without a flush a stage updates whenever each of its replicas has finished one more minibatch.
  return pipeline.synchronous() ? microbatch / pipeline.microbatches : local_index(pipeline, stage, microbatch);
}

int version_of(const Pipeline& pipeline, int stage, int microbatch) {
  return update_of(pipeline, stage, microbatch) - (pipeline.versions[stage] - 1);
}

int last_microbatch(const Schedule& schedule, const Action& action) {
  if (action.kind != Kind::Reduce && action.kind != Kind::Step) return action.microbatch;
  const Pipeline& pipeline = schedule.pipeline;
  int of_update = 1;
  if (pipeline.synchronous()) {
    of_update = pipeline.microbatches;
  } else if (pipeline.replicas == job::Replicas::RoundRobin) {
    of_update = pipeline.num_replicas(action.stage);
  }
  return std::min((action.microbatch + 1) * of_update, schedule.microbatches) - 1;  // the last of all may lack some
}

std::string to_text(const Schedule& schedule, const Action& action) {
  const auto& [kind, direction, stage, microbatch, version, part, edge, peer] = action;
  const std::string of_part = part == kWhole ? "" : fmt::format(" part {}", part);
  auto message = [&](const char* verb, const char* preposition) {
    const Edge& ends = schedule.pipeline.edges[edge];
    return fmt::format("{} {} {}>{} m{} {} {}", verb, direction == Direction::Activation ? "act" : "grad",
                       direction == Direction::Activation ? ends.from : ends.to,
                       direction == Direction::Activation ? ends.to : ends.from, microbatch, preposition, peer);
  };
  switch (kind) {
    case Kind::Forward: return fmt::format("{}F{}", stage, microbatch);
    case Kind::Backward: return fmt::format("{}B{}{}", stage, microbatch, of_part);
    case Kind::InputGrad: return fmt::format("{}I{}", stage, microbatch);
    case Kind::WeightGrad: return fmt::format("{}W{}", stage, microbatch);
    case Kind::Post: return message("POST", "from");
    case Kind::Send: return message("SEND", "to");
    case Kind::Receive: return message("RECV", "from");
    case Kind::Reduce: return fmt::format("REDUCE {} u{}{}", stage, microbatch, of_part);
    case Kind::Step: return fmt::format("STEP {} u{}{}", stage, microbatch, of_part);
  }
  return {};
}

}  // namespace millrace::schedule
