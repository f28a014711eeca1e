// Every micro-batch is computed once by each replica that takes it, forward first, parts in order.
#include "millrace/schedule/proof.h"

namespace millrace::schedule {
namespace {

Verdict check_backward(const Proof& proof, const Replica& replica, Places& places, int i) {
  const Action& action = proof.action(replica.worker, i);
  const int w = replica.worker;
  const bool halves = action.kind != Kind::Backward;
  const int parts = proof.pipeline().buckets[action.stage];
  if (!proof.schedule().trains) return fault_at(w, i, "goes backward in a schedule that does not train");
  if (!proof.pipeline().learns(action.stage)) return fault_at(w, i, "goes backward on a stage that stands still");
  if (places.forward == kNowhere) return fault_at(w, i, "comes before its forward");
  if (action.kind == Kind::WeightGrad) {
    if (places.gradient_ready == kNowhere) return fault_at(w, i, "comes before its input gradient");
    if (places.backward_end != kNowhere) return fault_at(w, i, "is done already, by action {}", places.backward_end);
    places.backward_end = i;
    return {};
  }
  const bool whole = halves || action.part == kWhole;
  if (whole && places.backward_begin != kNowhere) {
    return fault_at(w, i, "is done already, by action {}", places.backward_begin);
  }
  if (!whole && proof.pipeline().num_replicas(action.stage) == 1) {
    return fault_at(w, i, "is a part; a stage without replicas goes backward in one piece");
  }
  if (!whole && (places.backward_end != kNowhere || action.part != places.parts || action.part >= parts)) {
    return fault_at(w, i, "{} of {} parts are done; the next is not {}", places.parts, parts, action.part);
  }
  // An InputGrad before would have no parts to go on from.
  if (!whole && action.part == 0 && places.backward_begin != kNowhere) {
    return fault_at(w, i, "is done already, by action {}", places.backward_begin);
  }
  if (places.backward_begin == kNowhere) places.backward_begin = i;
  if (!whole) ++places.parts;
  if (whole || places.parts == parts) {
    places.gradient_ready = i;
    if (!halves) places.backward_end = i;
  }
  return {};
}

Verdict check_action(Proof& proof, int w, int i) {
  const Action& action = proof.action(w, i);
  const Schedule& schedule = proof.schedule();
  if (action.microbatch < 0 || action.microbatch >= schedule.microbatches) {
    return fault_at(w, i, "there are {} micro-batches", schedule.microbatches);
  }
  const Replica& replica = proof.replica(action.stage, w);
  if (!takes(schedule.pipeline, action.stage, replica.index, action.microbatch)) {
    const int other = action.microbatch % schedule.pipeline.num_replicas(action.stage);
    return fault_at(w, i, "it is worker {}'s turn to take micro-batch {}",
                    schedule.pipeline.stages[action.stage][other], action.microbatch);
  }
  Places& places = proof.places(action.stage, w, action.microbatch);
  if (action.kind != Kind::Forward) return check_backward(proof, replica, places, i);
  if (places.forward != kNowhere) return fault_at(w, i, "is done already, by action {}", places.forward);
  places.forward = i;
  return {};
}

}  // namespace

Verdict check_compute(Proof& proof) {
  const Schedule& schedule = proof.schedule();
  for (int w = 0; w < schedule.pipeline.num_workers; ++w) {
    for (int i = 0; i < static_cast<int>(proof.list(w).size()); ++i) {
      if (!is_compute(proof.action(w, i).kind)) continue;
      if (Verdict fault = check_action(proof, w, i)) return fault;
    }
  }
  for (const Replica& replica : proof.replicas()) {
    for (size_t l = 0; l < replica.places.size(); ++l) {
      const Places& places = replica.places[l];
      const char* missing = nullptr;
      if (places.forward == kNowhere) {
        missing = "forward";
      } else if (schedule.trains_on(replica.stage) && places.backward_begin == kNowhere) {
        missing = "backward";
      } else if (schedule.trains_on(replica.stage) && places.backward_end == kNowhere) {
        missing = places.parts > 0 ? "last part of the backward" : "weight gradient";
      }
      if (missing == nullptr) continue;
      return fault_at(replica.worker, -1, "the {} of micro-batch {} on stage {} is missing", missing,
                      replica.microbatches[l], replica.stage);
    }
  }
  return {};
}

}  // namespace millrace::schedule
