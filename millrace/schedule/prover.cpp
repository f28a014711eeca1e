#include "millrace/schedule/prover.h"

#include <algorithm>
#include <set>

#include "millrace/base/error.h"
#include "millrace/schedule/proof.h"

namespace millrace::schedule {

Proof::Proof(const Schedule& schedule) : schedule_(schedule) {
  const Pipeline& pipeline = schedule.pipeline;
  number_.assign(pipeline.num_stages(), std::vector<int>(pipeline.num_workers, kNowhere));
  for (int stage = 0; stage < pipeline.num_stages(); ++stage) {
    for (int index = 0; index < pipeline.num_replicas(stage); ++index) {
      const int worker = pipeline.stages[stage][index];
      number_[stage][worker] = static_cast<int>(replicas_.size());
      Replica& replica = replicas_.emplace_back();
      replica.stage = stage;
      replica.index = index;
      replica.worker = worker;
      for (int m = 0; m < schedule.microbatches; ++m) {
        if (takes(pipeline, stage, index, m)) replica.microbatches.push_back(m);
      }
      replica.places.resize(replica.microbatches.size());
    }
  }
}

namespace {

Verdict check_pipeline(const Pipeline& pipeline) {
  const size_t stages = pipeline.stages.size();
  if (pipeline.versions.size() != stages || pipeline.buckets.size() != stages) {
    return fault_at(-1, -1, "{} stages have {} numbers of versions and {} of buckets; each stage needs one", stages,
                    pipeline.versions.size(), pipeline.buckets.size());
  }
  if (pipeline.synchronous() && pipeline.microbatches < 1) {
    return fault_at(-1, -1, "an update takes {} micro-batches; it must take at least 1", pipeline.microbatches);
  }
  for (int stage = 0; stage < pipeline.num_stages(); ++stage) {
    const std::vector<int>& workers = pipeline.stages[stage];
    if (workers.empty()) return fault_at(-1, -1, "stage {} runs on no worker", stage);
    for (const int worker : workers) {
      if (worker < 0 || worker >= pipeline.num_workers) {
        return fault_at(-1, -1, "stage {} runs on worker {}; there are {}", stage, worker, pipeline.num_workers);
      }
    }
    if (std::set<int>(workers.begin(), workers.end()).size() != workers.size()) {
      return fault_at(-1, -1, "stage {} has two replicas on one worker", stage);
    }
    if (pipeline.versions[stage] < 1 || pipeline.buckets[stage] < 1) {
      return fault_at(-1, -1, "stage {} keeps {} versions and {} buckets; it needs at least 1 of each", stage,
                      pipeline.versions[stage], pipeline.buckets[stage]);
    }
  }
  for (const Edge& edge : pipeline.edges) {
    if (edge.from < 0 || edge.from >= edge.to || edge.to >= pipeline.num_stages()) {
      return fault_at(-1, -1, "an edge goes from stage {} to {}; edges go to later stages, of which there are {}",
                      edge.from, edge.to, pipeline.num_stages());
    }
  }
  return {};
}

}  // namespace

Verdict check_shape(const Schedule& schedule) {
  const Pipeline& pipeline = schedule.pipeline;
  if (Verdict fault = check_pipeline(pipeline)) return fault;
  if (static_cast<int>(schedule.workers.size()) != pipeline.num_workers) {
    return fault_at(-1, -1, "{} lists for {} workers", schedule.workers.size(), pipeline.num_workers);
  }
  for (int w = 0; w < pipeline.num_workers; ++w) {
    for (int i = 0; i < static_cast<int>(schedule.workers[w].size()); ++i) {
      const Action& action = schedule.workers[w][i];
      if (action.stage < 0 || action.stage >= pipeline.num_stages()) {
        return fault_at(w, i, "is about stage {}; there are {}", action.stage, pipeline.num_stages());
      }
      if (is_message(action.kind) && (action.edge < 0 || action.edge >= static_cast<int>(pipeline.edges.size()))) {
        return fault_at(w, i, "is about edge {}; there are {}", action.edge, pipeline.edges.size());
      }
      const std::vector<int>& workers = pipeline.stages[action.stage];
      if (std::find(workers.begin(), workers.end(), w) == workers.end()) {
        return fault_at(w, i, "is about stage {}, which this worker does not run", action.stage);
      }
    }
  }
  return {};
}

Verdict check_slots(const Schedule& schedule) {
  if (schedule.slots.size() != schedule.pipeline.stages.size()) {
    return fault_at(-1, -1, "{} stages have {} numbers of activation slots; each stage needs one",
                    schedule.pipeline.stages.size(), schedule.slots.size());
  }
  for (size_t stage = 0; stage < schedule.slots.size(); ++stage) {
    if (schedule.slots[stage] >= 1) continue;
    return fault_at(-1, -1, "stage {} has {} activation slots; it needs at least 1", stage, schedule.slots[stage]);
  }
  if (schedule.gradient_slots >= 1) return {};
  return fault_at(-1, -1, "{} gradient slots; at least 1 is needed", schedule.gradient_slots);
}

std::optional<Fault> find_compute_fault(const Schedule& compute) {
  if (Verdict fault = check_shape(compute)) return fault;
  Proof proof(compute);
  return check_compute(proof);
}

std::optional<Fault> find_fault(const Schedule& lowered) {
  if (Verdict fault = check_shape(lowered)) return fault;
  if (Verdict fault = check_slots(lowered)) return fault;
  Proof proof(lowered);
  if (Verdict fault = check_compute(proof)) return fault;
  if (Verdict fault = check_messages(proof)) return fault;
  if (Verdict fault = check_weights(proof)) return fault;
  if (Verdict fault = check_buffers(proof)) return fault;
  return check_progress(proof);
}

std::string to_text(const Schedule& schedule, const Fault& fault) {
  if (fault.worker < 0) return fault.what;
  if (fault.action < 0) return fmt::format("worker {}: {}", fault.worker, fault.what);
  const Action& action = schedule.workers[fault.worker][fault.action];
  const int num_edges = static_cast<int>(schedule.pipeline.edges.size());
  const bool printable = !is_message(action.kind) || (action.edge >= 0 && action.edge < num_edges);
  return fmt::format("worker {}, action {}{}: {}", fault.worker, fault.action,
                     printable ? fmt::format(" ({})", to_text(schedule, action)) : "", fault.what);
}

void prove(const Schedule& lowered) {
  if (const std::optional<Fault> fault = find_fault(lowered)) {
    fail_input("the schedule cannot run: {}", to_text(lowered, *fault));
  }
}

}  // namespace millrace::schedule
