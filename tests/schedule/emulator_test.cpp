#include "schedule/emulator.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <stdexcept>
#include <tuple>

#include "schedule/pipelines.h"

namespace millrace::schedule {
namespace {

struct Wrong : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <typename... Args>
void demand(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) throw Wrong(fmt::format(format, std::forward<Args>(args)...));
}

enum class Piece { Open, Arrived, Received };
enum class Phase { Empty, Filling, Computed, HalfBack, Done };

// A buffer of a replica: of activations, of gradients that come in, or of gradients that go out.
struct Buffer {
  int owner = -1;  // micro-batch
  Phase phase = Phase::Empty;
  std::map<std::pair<int, int>, Piece> pieces;  // by edge and peer
  int version = 0;
  int parts = 0;
  int readers = 0;  // messages that have not left

  void take_over(int microbatch) { *this = Buffer{microbatch, Phase::Filling, {}, 0, 0, 0}; }
};

struct Bucket {
  std::vector<int> ring;
  int newest = 0;
  std::multiset<int> gathered;
  bool sums = false;
};

struct Unit {  // a replica
  int stage = 0, index = 0, worker = 0;
  std::vector<Buffer> activations, incoming, outgoing;
  std::vector<Bucket> buckets;
  std::deque<std::pair<int, int>> sums;  // update and bucket, in the order offered
  std::set<std::pair<int, int>> summed;
  std::set<int> forwards;  // micro-batches
};

struct Key {
  int edge, direction, microbatch, from, to;
  auto operator<=>(const Key&) const = default;
};

struct Meeting {  // of a Send and a Post
  std::deque<Buffer*> sources, targets;
  std::deque<int> source_stages, target_stages;
  int arrived = 0;
};

class Machine {
 public:
  explicit Machine(const Schedule& schedule)
      : schedule_(schedule), pipeline_(schedule.pipeline), next_(schedule.workers.size(), 0) {
    demand(schedule.gradient_slots > 0, "no gradient slots");
    for (int s = 0; s < pipeline_.num_stages(); ++s) {
      demand(schedule.slots[s] > 0, "no slots");
      for (int r = 0; r < pipeline_.num_replicas(s); ++r) {
        Unit& unit = units_[{s, pipeline_.stages[s][r]}];
        unit.stage = s;
        unit.index = r;
        unit.worker = pipeline_.stages[s][r];
        unit.activations.resize(schedule.slots[s]);
        unit.incoming.resize(schedule.gradient_slots);
        unit.outgoing.resize(schedule.gradient_slots);
        unit.buckets.resize(pipeline_.num_replicas(s) > 1 ? pipeline_.buckets[s] : 1);
        for (Bucket& bucket : unit.buckets) {
          bucket.ring.resize(pipeline_.versions[s]);
          for (int v = 0; v > -pipeline_.versions[s]; --v) at(bucket.ring, v) = v;
        }
      }
    }
  }

  int workers() const { return static_cast<int>(next_.size()); }
  bool done() const {
    for (int w = 0; w < workers(); ++w) {
      if (next_[w] < schedule_.workers[w].size()) return false;
    }
    return true;
  }
  size_t deliverable() const { return passing_.size(); }

  // False: the worker must wait.
  bool step(int w) {
    if (next_[w] == schedule_.workers[w].size()) return false;
    const Action& action = schedule_.workers[w][next_[w]];
    const auto found = units_.find({action.stage, w});
    demand(found != units_.end(), "worker {} has no stage {}", w, action.stage);
    if (!perform(found->second, action)) return false;
    ++next_[w];
    return true;
  }

  void deliver(size_t which) {
    const Key key = passing_[which];
    passing_.erase(passing_.begin() + static_cast<std::ptrdiff_t>(which));
    Meeting& meeting = meetings_[key];
    Buffer &source = *meeting.sources.front(), &target = *meeting.targets.front();
    const Edge& edge = pipeline_.edges[key.edge];
    demand(meeting.source_stages.front() == (key.direction == 0 ? edge.from : edge.to), "sent by the wrong stage");
    demand(meeting.target_stages.front() == (key.direction == 0 ? edge.to : edge.from), "posted by the wrong stage");
    demand(source.owner == key.microbatch, "a message left with another micro-batch");
    const auto piece = target.pieces.find({key.edge, key.from});
    demand(target.owner == key.microbatch && piece != target.pieces.end() && piece->second == Piece::Open,
           "a message arrived in a buffer that is not open for it");
    piece->second = Piece::Arrived;
    --source.readers;
    ++meeting.arrived;
    meeting.sources.pop_front();
    meeting.targets.pop_front();
    meeting.source_stages.pop_front();
    meeting.target_stages.pop_front();
  }

  void check_end() const {
    for (const auto& [key, meeting] : meetings_) {
      demand(meeting.sources.empty() && meeting.targets.empty() && meeting.arrived == 0, "a message is left over");
    }
    for (const auto& [place, unit] : units_) {
      demand(unit.sums.empty(), "a sum is left over");
      int taken = 0, updates = 0;
      for (int m = 0; m < schedule_.microbatches; ++m) {
        taken += takes(pipeline_, unit.stage, unit.index, m);
        if (learns(unit)) updates = std::max(updates, update(unit, m) + 1);
      }
      demand(static_cast<int>(unit.forwards.size()) == taken, "a forward is missing");
      for (const Bucket& bucket : unit.buckets) demand(bucket.newest == updates, "an update is missing");
      for (const Bucket& bucket : unit.buckets) demand(bucket.gathered.empty(), "a gradient is left over");
    }
  }

 private:
  static int& at(std::vector<int>& ring, int version) {
    const int size = static_cast<int>(ring.size());
    return ring[((version % size) + size) % size];
  }
  bool learns(const Unit& unit) const { return schedule_.trains && unit.stage >= pipeline_.frozen; }
  bool in_turn() const { return pipeline_.replicas == job::Replicas::RoundRobin; }
  int local(const Unit& unit, int microbatch) const {
    return in_turn() ? microbatch / pipeline_.num_replicas(unit.stage) : microbatch;
  }
  int update(const Unit& unit, int microbatch) const {
    return pipeline_.synchronous() ? microbatch / pipeline_.microbatches : local(unit, microbatch);
  }
  Rows rows(int stage, int replica) const { return replica_rows(pipeline_, stage, replica); }
  template <typename Buffers>
  auto& slot(Buffers& buffers, const Unit& unit, int microbatch) const {
    return buffers[local(unit, microbatch) % buffers.size()];
  }

  // Whether what was received covers the replica's rows, on every edge that brings something.
  bool complete(const Unit& unit, const Buffer& buffer, Direction direction) const {
    const Rows mine = rows(unit.stage, unit.index);
    for (int e = 0; e < static_cast<int>(pipeline_.edges.size()); ++e) {
      const Edge& edge = pipeline_.edges[e];
      if ((direction == Direction::Activation ? edge.to : edge.from) != unit.stage) continue;
      const int other = direction == Direction::Activation ? edge.from : edge.to;
      int64_t covered = 0;
      for (int r = 0; r < pipeline_.num_replicas(other); ++r) {
        const auto piece = buffer.pieces.find({e, pipeline_.stages[other][r]});
        if (piece == buffer.pieces.end() || piece->second != Piece::Received) continue;
        const Rows theirs = rows(other, r);
        covered += std::max<int64_t>(std::min(mine.end, theirs.end) - std::max(mine.begin, theirs.begin), 0);
      }
      if (covered != mine.size()) return false;
    }
    return true;
  }
  bool has_edge(int stage, bool entering) const {
    return std::any_of(pipeline_.edges.begin(), pipeline_.edges.end(),
                       [&](const Edge& edge) { return (entering ? edge.to : edge.from) == stage; });
  }

  bool perform(Unit& unit, const Action& action) {
    switch (action.kind) {
      case Kind::Reduce: return reduce(unit, action);
      case Kind::Step: return update_weights(unit, action);
      default: break;
    }
    demand(action.microbatch >= 0 && action.microbatch < schedule_.microbatches, "no such micro-batch");
    switch (action.kind) {
      case Kind::Post: return post(unit, action);
      case Kind::Send: return send(unit, action);
      case Kind::Receive: return receive(unit, action);
      case Kind::Forward: return forward(unit, action);
      case Kind::Backward:
      case Kind::InputGrad: return backward(unit, action);
      default: return weight_grad(unit, action);
    }
  }

  // Reusing a buffer waits until the messages that read it have left.
  static bool open_for(Buffer& buffer, int microbatch) {
    if (buffer.owner == microbatch) return true;
    if (buffer.readers > 0) return false;
    buffer.take_over(microbatch);
    return true;
  }

  Key key(const Action& action, int worker) const {
    demand(action.edge >= 0 && action.edge < static_cast<int>(pipeline_.edges.size()), "no such edge");
    const bool sends = action.kind == Kind::Send;
    return {action.edge, static_cast<int>(action.direction), action.microbatch, sends ? worker : action.peer,
            sends ? action.peer : worker};
  }
  void meet(const Key& key) {
    const Meeting& meeting = meetings_[key];
    if (std::min(meeting.sources.size(), meeting.targets.size()) > 0) passing_.push_back(key);
  }

  bool post(Unit& unit, const Action& action) {
    const bool activation = action.direction == Direction::Activation;
    Buffer& buffer = slot(activation ? unit.activations : unit.incoming, unit, action.microbatch);
    const Key where = key(action, unit.worker);
    if (!open_for(buffer, action.microbatch)) return false;
    demand(buffer.phase == Phase::Filling, "a buffer is opened after its use");
    demand(buffer.pieces.emplace(std::pair(action.edge, action.peer), Piece::Open).second, "opened twice");
    meetings_[where].targets.push_back(&buffer);
    meetings_[where].target_stages.push_back(unit.stage);
    meet(where);
    return true;
  }

  bool send(Unit& unit, const Action& action) {
    const bool activation = action.direction == Direction::Activation;
    Buffer& buffer = slot(activation ? unit.activations : unit.outgoing, unit, action.microbatch);
    const Key where = key(action, unit.worker);
    demand(buffer.owner == action.microbatch && buffer.phase >= Phase::Computed, "sends what is not there");
    ++buffer.readers;
    meetings_[where].sources.push_back(&buffer);
    meetings_[where].source_stages.push_back(unit.stage);
    meet(where);
    return true;
  }

  bool receive(Unit& unit, const Action& action) {
    Meeting& meeting = meetings_[key(action, unit.worker)];
    if (meeting.arrived == 0) return false;
    --meeting.arrived;
    const bool activation = action.direction == Direction::Activation;
    Buffer& buffer = slot(activation ? unit.activations : unit.incoming, unit, action.microbatch);
    const auto piece = buffer.pieces.find({action.edge, action.peer});
    demand(buffer.owner == action.microbatch && piece != buffer.pieces.end() && piece->second == Piece::Arrived,
           "receives what is not there");
    piece->second = Piece::Received;
    return true;
  }

  void read_weights(Unit& unit, const Action& action, Bucket& bucket) const {
    const int promised = learns(unit) ? update(unit, action.microbatch) - (pipeline_.versions[unit.stage] - 1) : 0;
    demand(action.version == promised, "not the version that was promised");
    demand(at(bucket.ring, action.version) == action.version, "the version is not there");
  }

  bool forward(Unit& unit, const Action& action) {
    demand(takes(pipeline_, unit.stage, unit.index, action.microbatch), "not its micro-batch");
    Buffer& buffer = slot(unit.activations, unit, action.microbatch);
    if (!has_edge(unit.stage, true) && !open_for(buffer, action.microbatch)) return false;
    // With an empty share of the rows nothing comes in that would open the buffer.
    if (rows(unit.stage, unit.index).size() == 0 && !open_for(buffer, action.microbatch)) return false;
    demand(buffer.owner == action.microbatch && buffer.phase == Phase::Filling, "forward without its slot");
    demand(complete(unit, buffer, Direction::Activation), "forward without its inputs");
    for (Bucket& bucket : unit.buckets) {
      read_weights(unit, action, bucket);
      demand(!bucket.sums || !pipeline_.has_statistics(unit.stage), "forward writes statistics that are being summed");
    }
    buffer.phase = Phase::Computed;
    buffer.version = action.version;
    demand(unit.forwards.insert(action.microbatch).second, "a forward is done twice");
    return true;
  }

  static void gather(const Action& action, Bucket& bucket) {
    demand(!bucket.sums, "adds to a gradient that is being summed");
    bucket.gathered.insert(action.microbatch);
  }
  std::multiset<int> gradient_of(const Unit& unit, int wanted) const {
    std::multiset<int> microbatches;
    for (int m = 0; m < schedule_.microbatches; ++m) {
      if (takes(pipeline_, unit.stage, unit.index, m) && update(unit, m) == wanted) microbatches.insert(m);
    }
    return microbatches;
  }

  void check_backward(Unit& unit, const Action& action, const Buffer& activation) {
    demand(learns(unit), "backward without training");
    demand(takes(pipeline_, unit.stage, unit.index, action.microbatch), "not its micro-batch");
    demand(activation.owner == action.microbatch, "backward without its activations");
    demand(activation.version == action.version, "backward on another version than forward");
    if (!has_edge(unit.stage, false)) return;
    const Buffer& incoming = slot(unit.incoming, unit, action.microbatch);
    if (rows(unit.stage, unit.index).size() == 0) return;
    demand(incoming.owner == action.microbatch, "backward without its gradient");
    demand(complete(unit, incoming, Direction::Gradient), "backward without all of its gradient");
  }

  bool backward(Unit& unit, const Action& action) {
    Buffer& activation = slot(unit.activations, unit, action.microbatch);
    Buffer* outgoing = has_edge(unit.stage, true) ? &slot(unit.outgoing, unit, action.microbatch) : nullptr;
    check_backward(unit, action, activation);
    demand(activation.phase == Phase::Computed, "backward at the wrong time");
    if (outgoing != nullptr && !open_for(*outgoing, action.microbatch)) return false;
    const bool part = action.kind == Kind::Backward && action.part != kWhole;
    const int num_buckets = static_cast<int>(unit.buckets.size());
    demand(part || activation.parts == 0, "a whole after parts");
    demand(!part || (pipeline_.num_replicas(unit.stage) > 1 && action.part == activation.parts), "the wrong part");
    demand(!part || action.part < num_buckets, "no such part");
    for (int b = part ? action.part : 0; b < (part ? action.part + 1 : num_buckets); ++b) {
      Bucket& bucket = unit.buckets[b];
      read_weights(unit, action, bucket);
      if (action.kind == Kind::InputGrad) continue;
      gather(action, bucket);
      demand(!part || bucket.gathered == gradient_of(unit, update(unit, action.microbatch)),
             "a part of a backward that does not complete its update");
    }
    if (part && ++activation.parts < num_buckets) return true;
    activation.phase = action.kind == Kind::InputGrad ? Phase::HalfBack : Phase::Done;
    if (outgoing != nullptr) outgoing->phase = Phase::Computed;
    return true;
  }

  bool weight_grad(Unit& unit, const Action& action) {
    Buffer& activation = slot(unit.activations, unit, action.microbatch);
    check_backward(unit, action, activation);
    demand(activation.phase == Phase::HalfBack, "weight gradient at the wrong time");
    for (Bucket& bucket : unit.buckets) {
      read_weights(unit, action, bucket);
      gather(action, bucket);
    }
    activation.phase = Phase::Done;
    return true;
  }

  bool reduce(Unit& unit, const Action& action) {
    demand(action.part >= 0 && action.part < static_cast<int>(unit.buckets.size()), "no such bucket");
    demand(pipeline_.num_replicas(unit.stage) > 1, "nothing to sum with");
    Bucket& bucket = unit.buckets[action.part];
    demand(!bucket.sums, "summed while it is being summed");
    demand(bucket.gathered == gradient_of(unit, action.microbatch), "sums the wrong gradients");
    bucket.sums = true;
    unit.sums.emplace_back(action.microbatch, action.part);
    // One after another, when every replica's next is the same.
    while (true) {
      for (const int worker : pipeline_.stages[unit.stage]) {
        const Unit& other = units_.at({unit.stage, worker});
        if (other.sums.empty() || unit.sums.empty() || other.sums.front() != unit.sums.front()) return true;
      }
      for (const int worker : pipeline_.stages[unit.stage]) {
        Unit& other = units_.at({unit.stage, worker});
        other.summed.insert(other.sums.front());
        other.sums.pop_front();
      }
    }
  }

  bool update_weights(Unit& unit, const Action& action) {
    const bool alone = pipeline_.num_replicas(unit.stage) == 1;
    demand(alone || action.part != kWhole, "a step without a sum");
    if (action.part != kWhole && !unit.summed.contains({action.microbatch, action.part})) return false;
    Bucket& bucket = unit.buckets[alone ? 0 : action.part];
    demand(bucket.gathered == gradient_of(unit, action.microbatch), "steps with the wrong gradients");
    demand(alone || bucket.sums, "steps twice");
    demand(action.version == action.microbatch + 1, "writes another version than its update makes");
    demand(bucket.newest == action.version - 1, "steps out of order");
    at(bucket.ring, action.version) = action.version;
    bucket.newest = action.version;
    bucket.gathered.clear();
    bucket.sums = false;
    return true;
  }

  const Schedule& schedule_;
  const Pipeline& pipeline_;
  std::vector<size_t> next_;
  std::map<std::pair<int, int>, Unit> units_;  // by stage and worker
  std::map<Key, Meeting> meetings_;
  std::vector<Key> passing_;  // sent and posted, not yet through
};

bool any_worker(Machine& machine, bool from_last) {
  for (int i = 0; i < machine.workers(); ++i) {
    if (machine.step(from_last ? machine.workers() - 1 - i : i)) return true;
  }
  return false;
}

bool any_message(Machine& machine, bool youngest) {
  if (machine.deliverable() == 0) return false;
  machine.deliver(youngest ? machine.deliverable() - 1 : 0);
  return true;
}

bool anything(Machine& machine, Policy policy, std::mt19937_64& random) {
  switch (policy) {
    case Policy::FirstWorker: return any_message(machine, false) || any_worker(machine, false);
    case Policy::LastWorker: return any_message(machine, false) || any_worker(machine, true);
    case Policy::LateMessages: return any_worker(machine, false) || any_message(machine, false);
    case Policy::LatestMessages: return any_worker(machine, true) || any_message(machine, true);
    case Policy::Random: break;
  }
  // Whoever is drawn runs for a while; if it cannot go on at all, anybody.
  const size_t drawn = random() % (machine.workers() + machine.deliverable());
  if (drawn >= static_cast<size_t>(machine.workers())) {
    machine.deliver(drawn - machine.workers());
    return true;
  }
  int steps = 0;
  while (steps < static_cast<int>(random() % 8) && machine.step(static_cast<int>(drawn))) ++steps;
  return steps > 0 || any_worker(machine, random() % 2 == 0) || any_message(machine, false);
}

}  // namespace

std::optional<std::string> emulate(const Schedule& schedule, Policy policy, uint64_t seed) {
  try {
    Machine machine(schedule);
    std::mt19937_64 random(seed);
    while (anything(machine, policy, random)) {
    }
    if (!machine.done()) return "everybody waits";
    machine.check_end();
  } catch (const Wrong& wrong) {
    return wrong.what();
  }
  return {};
}

TEST(Emulator, RunsWhatTheModesGenerate) {
  for (const auto& [name, pipeline] : many_pipelines()) {
    const Schedule schedule = lower(compute_schedule(pipeline, 3));
    for (const Policy policy : {Policy::FirstWorker, Policy::LatestMessages, Policy::Random}) {
      EXPECT_EQ(emulate(schedule, policy, 7).value_or(""), "") << name;
    }
  }
}

}  // namespace millrace::schedule
