// No buffer is written while what it holds is needed. A buffer is needed from the action that first writes (or opens)
// it to the last that reads it; the uses of one buffer must follow each other in the list.
#include <algorithm>

#include "millrace/schedule/proof.h"

namespace millrace::schedule {
namespace {

struct Use {
  int microbatch = 0;
  int begin = 0, end = 0;  // places in the list
};

Verdict check_uses(const Proof& proof, const Replica& replica, const char* what, int slot, std::vector<Use>& uses) {
  std::sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < uses.size(); ++i) {
    const Use &before = uses[i - 1], &after = uses[i];
    if (after.begin > before.end) continue;
    return fault_at(replica.worker, after.begin,
                    "overwrites {} {} of stage {}, which holds micro-batch {} until action {} ({})", what, slot,
                    replica.stage, before.microbatch, before.end, proof.text(replica.worker, before.end));
  }
  return {};
}

// `use_of` gives the first and last use of a micro-batch's buffer; a beginning of kNowhere: it has none.
template <typename UseOf>
Verdict check_buffer(const Proof& proof, const Replica& replica, const char* what, int slots, UseOf use_of) {
  std::vector<std::vector<Use>> uses(slots);
  for (size_t l = 0; l < replica.places.size(); ++l) {
    const auto [begin, end] = use_of(replica.places[l]);
    if (begin != kNowhere) uses[l % slots].push_back({replica.microbatches[l], begin, end});
  }
  for (int slot = 0; slot < slots; ++slot) {
    if (Verdict fault = check_uses(proof, replica, what, slot, uses[slot])) return fault;
  }
  return {};
}

int earlier(int a, int b) { return a == kNowhere ? b : b == kNowhere ? a : std::min(a, b); }

constexpr int kActivation = static_cast<int>(Direction::Activation), kGradient = static_cast<int>(Direction::Gradient);

Verdict check_replica(const Proof& proof, const Replica& replica) {
  const Schedule& schedule = proof.schedule();
  const auto activation = [](const Places& places) {
    const int read = std::max(places.forward, places.backward_end);
    return std::pair(earlier(places.first_post[kActivation], places.forward),
                     std::max(read, places.last_send[kActivation]));
  };
  const auto incoming = [](const Places& places) {
    return std::pair(places.first_post[kGradient], places.backward_end);
  };
  const auto outgoing = [](const Places& places) {
    const bool sends = places.last_send[kGradient] != kNowhere;
    return std::pair(sends ? places.backward_begin : kNowhere, places.last_send[kGradient]);
  };
  const int slots = schedule.slots[replica.stage], gradient_slots = schedule.gradient_slots;
  if (Verdict fault = check_buffer(proof, replica, "activation slot", slots, activation)) return fault;
  if (Verdict fault = check_buffer(proof, replica, "incoming gradient slot", gradient_slots, incoming)) return fault;
  return check_buffer(proof, replica, "outgoing gradient slot", gradient_slots, outgoing);
}

}  // namespace

Verdict check_buffers(const Proof& proof) {
  for (const Replica& replica : proof.replicas()) {
    if (Verdict fault = check_replica(proof, replica)) return fault;
  }
  return {};
}

}  // namespace millrace::schedule
