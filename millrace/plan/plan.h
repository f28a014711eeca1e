// A plan says which operators each stage has, on which workers it runs, and how updates follow from micro-batches: all
// that a schedule is made from. Plain data, made from the job and the model alone.
#pragma once

#include <string>
#include <vector>

#include "millrace/graph/program.h"
#include "millrace/job/job.h"
#include "millrace/job/placement.h"
#include "millrace/schedule/schedule.h"

namespace millrace::plan {

// A parameter that several stages read: each has it, and their gradients are summed before each updates its own.
struct Tie {
  graph::ParamId param = graph::kNone;
  std::vector<int> stages;
};

struct Plan {
  schedule::Pipeline pipeline;
  std::vector<graph::OpId> first;       // operator that each stage begins with
  std::vector<graph::StageEdge> edges;  // values on each edge of the pipeline, in the same order
  std::vector<Tie> ties;
  bool shares_params = false;          // some parameter is read by several stages, whether it is trained or not
  std::vector<job::DeviceId> devices;  // of each worker
  std::vector<bool> reads_features, reads_labels;  // of each stage: what comes from the data

  // Workers sum in groups: the replicas of each stage, all workers, those of each tie, the replicas of the loss.
  int agreement_group() const { return pipeline.num_stages(); }
  int tie_group(size_t tie) const { return agreement_group() + 1 + static_cast<int>(tie); }
  int score_group() const { return tie_group(ties.size()); }

  // Those that sum the gradients of a tied parameter.
  std::vector<int> workers_of(const Tie& tie) const;
  graph::StageSlice slice(int stage) const { return {first, stage}; }
  // Rows a replica computes of a micro-batch.
  schedule::Rows rows(int stage, int replica) const { return schedule::replica_rows(pipeline, stage, replica); }
};

// Whether the model is cut by how long its operators take, which somebody has to measure.
bool needs_op_seconds(const job::Parallel& parallel);

// `graph` is the fused model with any batch. `num_processes`: workers that are there when the job places none.
// `op_seconds` per operator, where they are needed.
Plan make_plan(const job::Job& job, const graph::Graph& graph, int num_processes,
               const std::vector<double>& op_seconds = {});

// "stage 1 of 2: fc6 to loss (9 operators) on 0:7", one line per stage.
std::string to_text(const Plan& plan, const graph::Graph& graph);

}  // namespace millrace::plan
