// Walks each replica's list with its ring of versions and its buckets of gradients: what an action reads exists and is
// what its mode promises, gradients are complete when they are used and untouched while they are summed.
#include <algorithm>

#include "millrace/schedule/proof.h"
#include "millrace/schedule/waits.h"

namespace millrace::schedule {
namespace {

class ReplicaWalk {
 public:
  ReplicaWalk(const Proof& proof, const Replica& replica)
      : proof_(proof),
        replica_(replica),
        versions_(proof.pipeline().versions[replica.stage]),
        summed_(proof.pipeline().num_replicas(replica.stage) > 1),
        updates_(updates_in(proof.schedule(), replica.stage)),
        buckets_(summed_ ? proof.pipeline().buckets[replica.stage] : 1) {
    expected_.assign(updates_, 0);
    if (!proof.schedule().trains_on(replica.stage)) return;
    for (const int m : replica.microbatches) ++expected_[update_of(proof.pipeline(), replica.stage, m)];
  }

  Verdict visit(int i) {
    const Action& action = proof_.action(replica_.worker, i);
    if (is_compute(action.kind)) return compute(action, i);
    if (action.kind == Kind::Reduce) return reduce(action, i);
    if (action.kind == Kind::Step) return step(action, i);
    return {};
  }

  Verdict finish() const {
    for (size_t b = 0; b < buckets_.size(); ++b) {
      if (buckets_[b].newest == updates_) continue;
      return fault_at(replica_.worker, -1, "STEP {} u{}{} is missing", replica_.stage, buckets_[b].newest,
                      summed_ ? fmt::format(" part {}", b) : "");
    }
    return {};
  }

 private:
  struct Bucket {
    int newest = 0;     // version, which is also the update that gradients are gathered for
    int gathered = 0;   // micro-batches in the gradient
    bool sums = false;  // from Reduce to Step
  };

  template <typename... Args>
  Fault fault(int i, fmt::format_string<Args...> format, Args&&... args) const {
    return fault_at(replica_.worker, i, format, std::forward<Args>(args)...);
  }

  Verdict compute(const Action& action, int i) {
    const bool trains = proof_.schedule().trains_on(action.stage);
    const int promised = trains ? version_of(proof_.pipeline(), action.stage, action.microbatch) : 0;
    if (action.version != promised) {
      return fault(i, "reads version {} of the weights; its mode promises {}", action.version, promised);
    }
    const bool part = action.kind == Kind::Backward && action.part != kWhole;
    const size_t begin = part ? action.part : 0, end = part ? action.part + 1 : buckets_.size();
    for (size_t b = begin; b < end; ++b) {
      if (Verdict found = read(action, i, buckets_[b])) return found;
      if (action.kind != Kind::Backward && action.kind != Kind::WeightGrad) continue;
      if (Verdict found = gather(action, i, buckets_[b], part)) return found;
    }
    return {};
  }

  Verdict read(const Action& action, int i, const Bucket& bucket) const {
    if (action.version > bucket.newest) {
      return fault(i, "reads version {} of the weights; the newest is {}", action.version, bucket.newest);
    }
    if (action.version <= bucket.newest - versions_) {
      return fault(i, "reads version {} of the weights; the stage keeps {}, the oldest is {}", action.version,
                   versions_, bucket.newest - versions_ + 1);
    }
    // Batch-norm statistics travel with the gradients.
    if (action.kind == Kind::Forward && bucket.sums && proof_.pipeline().has_statistics(action.stage)) {
      return fault(i, "writes statistics while update {} of stage {} is being summed", bucket.newest, action.stage);
    }
    return {};
  }

  Verdict gather(const Action& action, int i, Bucket& bucket, bool part) const {
    const int update = update_of(proof_.pipeline(), action.stage, action.microbatch);
    if (update != bucket.newest) {
      return fault(i, "adds to the gradient of update {}, but the stage is at update {}", update, bucket.newest);
    }
    if (bucket.sums) return fault(i, "adds to the gradient of update {} while it is being summed", update);
    ++bucket.gathered;
    if (part && bucket.gathered != expected_[update]) {
      return fault(i, "is a part, but does not complete update {}; write it in one piece", update);
    }
    return {};
  }

  Verdict check_update(const Action& action, int i, const Bucket& bucket) const {
    if (action.microbatch != bucket.newest || action.microbatch >= updates_) {
      return fault(i, "is about update {}; the stage is at update {} of {}", action.microbatch, bucket.newest,
                   updates_);
    }
    if (bucket.gathered != expected_[action.microbatch]) {
      return fault(i, "uses a gradient of {} micro-batches; update {} has {}", bucket.gathered, action.microbatch,
                   expected_[action.microbatch]);
    }
    return {};
  }

  Verdict reduce(const Action& action, int i) {
    const int num_buckets = static_cast<int>(buckets_.size());
    if (!summed_) return fault(i, "stage {} has one replica: there is nothing to sum", action.stage);
    if (action.part < 0 || action.part >= num_buckets) {
      return fault(i, "is about bucket {}; the stage has {}", action.part, num_buckets);
    }
    Bucket& bucket = buckets_[action.part];
    if (Verdict found = check_update(action, i, bucket)) return found;
    if (bucket.sums) return fault(i, "is done already");
    // The replicas meet in their sums one after another, so all must have them in the same order.
    if (action.part != next_sum_) return fault(i, "sums bucket {} before bucket {}", action.part, next_sum_);
    next_sum_ = (next_sum_ + 1) % num_buckets;
    bucket.sums = true;
    return {};
  }

  Verdict step(const Action& action, int i) {
    const int num_buckets = static_cast<int>(buckets_.size());
    const bool whole = action.part == kWhole;
    if (whole && summed_) {
      return fault(i, "stage {} is summed over {} replicas; write a step for each bucket", action.stage,
                   proof_.pipeline().num_replicas(action.stage));
    }
    if (!whole && !summed_) return fault(i, "stage {} has one replica; write one step for all weights", action.stage);
    if (!whole && (action.part < 0 || action.part >= num_buckets)) {
      return fault(i, "is about bucket {}; the stage has {}", action.part, num_buckets);
    }
    Bucket& bucket = buckets_[whole ? 0 : action.part];
    if (Verdict found = check_update(action, i, bucket)) return found;
    if (action.version != action.microbatch + 1) {
      return fault(i, "writes version {}; update {} makes version {}", action.version, action.microbatch,
                   action.microbatch + 1);
    }
    if (summed_ && !bucket.sums) return fault(i, "comes before its REDUCE");
    bucket = {bucket.newest + 1, 0, false};
    return {};
  }

  const Proof& proof_;
  const Replica& replica_;
  const int versions_;
  const bool summed_;
  const int updates_;
  std::vector<Bucket> buckets_;
  std::vector<int> expected_;  // micro-batches of the replica in each update
  int next_sum_ = 0;
};

}  // namespace

Verdict check_weights(const Proof& proof) {
  std::vector<std::vector<ReplicaWalk*>> walk_of(proof.pipeline().num_stages());
  std::vector<ReplicaWalk> walks;
  walks.reserve(proof.replicas().size());
  for (std::vector<ReplicaWalk*>& of_stage : walk_of) of_stage.resize(proof.pipeline().num_workers);
  for (const Replica& replica : proof.replicas()) {
    walk_of[replica.stage][replica.worker] = &walks.emplace_back(proof, replica);
  }
  for (int w = 0; w < proof.pipeline().num_workers; ++w) {
    for (int i = 0; i < static_cast<int>(proof.list(w).size()); ++i) {
      if (Verdict fault = walk_of[proof.action(w, i).stage][w]->visit(i)) return fault;
    }
  }
  for (const ReplicaWalk& walk : walks) {
    if (Verdict fault = walk.finish()) return fault;
  }
  return {};
}

}  // namespace millrace::schedule
