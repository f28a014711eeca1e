// From a job to a plan for a cluster, as `millrace plan`, `simulate` and parallel.mode: auto do it.
#pragma once

#include <string>
#include <vector>

#include "cli/commands.h"
#include "millrace/comm/process.h"
#include "millrace/graph/graph.h"
#include "millrace/job/job.h"
#include "millrace/plan/cluster.h"
#include "millrace/plan/planner.h"
#include "millrace/profile/profile.h"

namespace millrace::cli {

struct PlanningArguments {
  std::string cluster = "local";
  std::vector<std::string> profiles;
  void declare(CLI::App& command);
};

// A file's, or measured here where the name is "local".
plan::Cluster find_cluster(const std::string& name, const job::Job& job);

// Those of the files, or measured here: as many workers at once as a node of the cluster has devices.
std::vector<profile::Profile> find_profiles(const job::Job& job, const plan::Cluster& cluster,
                                            const std::vector<std::string>& files);

struct PlannedChoice {
  graph::Graph graph;
  plan::Cluster cluster;
  plan::Choice choice;
};
PlannedChoice plan_job(const job::Job& job, const PlanningArguments& arguments);

// parallel.mode: auto becomes what the planner chooses, on all processes alike. On process 0 `plan_json` is what the
// choice was made of; other modes leave everything as it is.
job::Job resolve_auto(comm::Process& process, const job::Job& job, std::string& plan_json);

}  // namespace millrace::cli
