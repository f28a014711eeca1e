// A plan for people and for scripts: tables, plan.json, and a picture of the pipeline.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "millrace/job/job.h"
#include "millrace/plan/planner.h"
#include "millrace/runtime/worker_record.h"

namespace millrace::report {

// What a choice was made for.
struct PlannedJob {
  const job::Job& job;
  const graph::Graph& graph;  // with any batch
  const plan::Cluster& cluster;
  const plan::Choice& choice;
};

// Stages with their memory by kind, what is predicted beside the baselines, and the pipeline as text.
std::string plan_tables(const PlannedJob& planned);
// Every candidate, and what keeps it from being the choice.
std::string explain_choice(const plan::Choice& choice);
// plan.json: "parallel" is what a run reads back.
nlohmann::ordered_json plan_json(const PlannedJob& planned);
// The pipeline over time, a row per worker.
std::string plan_svg(const PlannedJob& planned);

// What workers would do and when, in the form in which they record it; `updates` of them.
std::vector<runtime::WorkerRecord> simulated_records(const plan::Plan& plan, const plan::Prediction& prediction,
                                                     int updates);

}  // namespace millrace::report
