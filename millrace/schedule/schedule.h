// A schedule is data: per worker an ordered list of actions. Generators write the compute actions of a mode,
// `lower` adds the messages, reductions and updates; the prover checks the lists, the simulator times them and the
// executor runs them. Nothing else decides what a worker does next.
//
// What an action means (l: the place of a micro-batch among those of its replica, 0, 1, 2, ...):
//
//   Forward, Backward    compute on (stage, micro-batch). Backward is InputGrad then WeightGrad. A Backward that
//   InputGrad,           completes an update of a replicated stage may come in parts, one per bucket of gradients:
//   WeightGrad           part 0 first; kWhole otherwise.
//   Post                 opens the buffer of a message for writing: the message may arrive from here on.
//   Send                 the message leaves as soon as its buffer is open at the other end. Never blocks by itself.
//   Receive              waits until the message has arrived.
//   Reduce               starts the sum of a bucket over the replicas of the stage (micro-batch: the update).
//   Step                 waits for the bucket, then writes the next version of its weights (micro-batch: the update;
//                        kWhole: all weights of the stage, without a sum). Where stages agree on steps, the last Step
//                        of an update also waits until every stage has come to its own.
//
// Buffers. A replica keeps `slots[stage]` activation slots: micro-batch l lives in slot l % slots, from the Post (or
// Forward) that writes it to the end of its Backward (WeightGrad). Its outgoing activation messages read the same
// slot and must have left before the slot is written again. Gradients that come in and go out have
// `gradient_slots` buffers each, used in turn in the same way: one that comes in from Post to the end of the Backward
// (WeightGrad), one that goes out from Backward (InputGrad) to the message's departure.
//
// Stages that stand still (the first `frozen`) only go forward, always with the same weights (version 0): no gradient
// comes to them, none leaves them, and a slot of theirs is free again when what was computed in it has left. Their
// workers have no other stage.
//
// Versions. Stage s keeps versions[s] = b versions of its weights. Micro-batches that belong to update u (see
// update_of) read version u - (b - 1), and Step u writes version u + 1 over version u + 1 - b. Versions count from
// the beginning of the list; a negative one is from before it (or, at the start of training, version 0).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/job/job.h"

namespace millrace::schedule {

enum class Kind : uint8_t { Forward, Backward, InputGrad, WeightGrad, Post, Send, Receive, Reduce, Step };
enum class Direction : uint8_t { Activation, Gradient };

constexpr int kWhole = -1;

struct Action {
  Kind kind = Kind::Forward;
  Direction direction = Direction::Activation;  // of Post, Send and Receive
  int stage = 0;
  int microbatch = 0;  // of Reduce and Step: the update
  int version = 0;     // weights that a compute action reads, that a Step writes
  int part = kWhole;   // of Backward, Reduce and Step: the bucket
  int edge = -1;       // of Post, Send and Receive
  int peer = -1;       // worker at the other end of the message
  bool operator==(const Action&) const = default;
};

inline bool is_compute(Kind kind) { return kind <= Kind::WeightGrad; }
inline bool is_message(Kind kind) { return kind == Kind::Post || kind == Kind::Send || kind == Kind::Receive; }

// Values go from stage `from` to the later stage `to`, their gradients back.
struct Edge {
  int from = 0;
  int to = 0;
  bool operator==(const Edge&) const = default;
};

// Half-open range of rows of a micro-batch.
struct Rows {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Rows&) const = default;
};

// What a schedule is made from: stages, where they run, and how updates depend on micro-batches.
struct Pipeline {
  job::Mode mode = job::Mode::Dp;
  job::Replicas replicas = job::Replicas::Split;
  int num_workers = 1;
  std::vector<std::vector<int>> stages;  // per stage the workers of its replicas; a worker may run several stages
  std::vector<Edge> edges;
  std::vector<int> versions;  // per stage; 1 in synchronous modes
  std::vector<int> ahead;     // per stage: forwards before the first backward, less one; empty: see compute_schedule
  // Per stage: whether forward writes running statistics, which are summed with the gradients, so that no forward may
  // come between the two. Empty: all do.
  std::vector<bool> statistics;
  std::vector<int> buckets;  // per stage: pieces in which gradients are reduced; used where there are replicas
  int64_t rows = 1;          // of a micro-batch, over all replicas
  std::vector<std::vector<int>> shares;  // per stage and replica of those rows, under Replicas::Split; empty: even
  int microbatches = 1;                  // of one update, in synchronous modes
  bool multi_buffer = true;
  bool agrees_on_steps = false;  // an update is made by all stages or by none: each waits for what the others found
  int frozen = 0;                // stages, from the first on, that stand still
  bool operator==(const Pipeline&) const = default;

  int num_stages() const { return static_cast<int>(stages.size()); }
  int num_replicas(int stage) const { return static_cast<int>(stages[stage].size()); }
  bool learns(int stage) const { return stage >= frozen; }
  bool has_statistics(int stage) const { return statistics.empty() || statistics[stage]; }
  bool synchronous() const { return mode == job::Mode::Dp || mode == job::Mode::GPipe || mode == job::Mode::OneFOneB; }
};

// A chain of stages with one worker each and one edge between neighbours.
Pipeline chain(job::Mode mode, int num_stages, int microbatches);

// Rows of a micro-batch that a replica works on, if it takes it.
Rows replica_rows(const Pipeline& pipeline, int stage, int replica);

// Whether the replica works on the micro-batch at all; under Replicas::RoundRobin only one of a stage does.
bool takes(const Pipeline& pipeline, int stage, int replica, int microbatch);
// The place of a micro-batch among those its replica takes.
int local_index(const Pipeline& pipeline, int stage, int microbatch);
// The update of the stage that a micro-batch's gradient goes into, counted from the beginning of the list.
int update_of(const Pipeline& pipeline, int stage, int microbatch);
// The version that a micro-batch reads on a stage.
int version_of(const Pipeline& pipeline, int stage, int microbatch);

struct Schedule {
  Pipeline pipeline;
  int microbatches = 0;    // in the lists
  bool trains = true;      // false: forward only
  std::vector<int> slots;  // per stage
  int gradient_slots = 1;
  std::vector<std::vector<Action>> workers;

  bool trains_on(int stage) const { return trains && pipeline.learns(stage); }
};

// Compute actions only. A stage runs as many forwards ahead as keep all later stages busy, at most what `ahead` says
// and its versions allow. Synchronous modes: `updates` updates of pipeline.microbatches each, with a flush between
// them. Asynchronous modes: `updates` minibatches, drained at the end.
Schedule compute_schedule(const Pipeline& pipeline, int updates);
// Forward only, for evaluation; every stage reads its newest weights.
Schedule evaluation_schedule(const Pipeline& pipeline, int microbatches);

// The last micro-batch that an action has to do with. A list whose actions from some micro-batch on are left out, where
// every stage has finished whole updates, is the list of as many micro-batches as are left.
int last_microbatch(const Schedule& schedule, const Action& action);

// Adds slots (where they are not set), messages, reductions and updates to compute actions.
Schedule lower(Schedule compute);

// "0F3", "SEND act 0>1 m3 to 2", for people and messages.
std::string to_text(const Schedule& schedule, const Action& action);

}  // namespace millrace::schedule
