// millrace plan: chooses how a job runs on a cluster; or, from PipeDream's graph file, where a model is cut.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/planning.h"
#include "millrace/base/error.h"
#include "millrace/job/small_file.h"
#include "millrace/job/text.h"
#include "millrace/plan/pipedream_cost.h"
#include "millrace/profile/profile.h"
#include "millrace/report/plan_report.h"
#include "millrace/report/run_directory.h"
#include "millrace/report/table.h"
#include "millrace/report/units.h"

namespace millrace::cli {
namespace {

struct PlanArguments {
  JobArguments job;
  PlanningArguments planning;
  std::string svg;
  bool explain = false, stale = false;
  std::string graph, devices, bandwidth, cost_model;
  std::string json;
};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts{""};
  for (char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// "4x4" and "1.1e10,1.25e9": levels, innermost first.
std::vector<plan::PipeDreamLevel> read_levels(const PlanArguments& arguments) {
  constexpr int kMostDevices = 1024;
  const auto counts = split(arguments.devices, 'x'), bandwidths = split(arguments.bandwidth, ',');
  std::vector<plan::PipeDreamLevel> levels(counts.size());
  int64_t total = 1;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (job::parse_number(counts[i], levels[i].workers) != job::NumberFault::Ok || levels[i].workers < 1 ||
        (total *= levels[i].workers) > kMostDevices) {
      fail_input("--devices {}: write a number from 1 to {}, or one per level, innermost first: 4x4",
                 job::in_quotes(arguments.devices), kMostDevices);
    }
  }
  if (counts.size() != bandwidths.size()) {
    fail_input("--devices {} has {}, --bandwidth {} has {}; write one bandwidth per level, innermost first",
               job::in_quotes(arguments.devices), report::counted(static_cast<int64_t>(counts.size()), "level"),
               job::in_quotes(arguments.bandwidth), bandwidths.size());
  }
  for (size_t i = 0; i < counts.size(); ++i) {
    if (job::parse_number(bandwidths[i], levels[i].bytes_per_s) != job::NumberFault::Ok ||
        !(levels[i].bytes_per_s > 0)) {
      fail_input("--bandwidth {}: write bytes per second above 0, e.g. 1e9, or one per level: 1.1e10,1.25e9",
                 job::in_quotes(arguments.bandwidth));
    }
  }
  return levels;
}

std::string named(const profile::Operator& op) { return fmt::format("{} {}", op.name, op.kind); }

nlohmann::ordered_json to_json(const plan::PipeDreamPlan& plan, const profile::Profile& profile) {
  auto stages = nlohmann::ordered_json::array();
  for (const plan::PipeDreamStage& stage : plan.stages) {
    stages.push_back({{"first", profile.operators[stage.operators.front()].name},
                      {"last", profile.operators[stage.operators.back()].name},
                      {"operators", stage.operators.size()},
                      {"replicas", stage.replicas},
                      {"compute_s", stage.compute_s}});
  }
  return {{"cost_model", "pipedream"},
          {"cost_s", plan.cost_s},
          {"data_parallel_cost_s", plan.data_parallel_s},
          {"all_cuts_considered", plan.all_prefixes},
          {"stages", stages}};
}

void print_plan(const plan::PipeDreamPlan& plan, const profile::Profile& profile) {
  report::Table table({"stage", "layers", "operators", "replicas", "time", "time / replicas"});
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const plan::PipeDreamStage& stage = plan.stages[s];
    table.add({fmt::format("{}", s),
               fmt::format("{} to {}", named(profile.operators[stage.operators.front()]),
                           named(profile.operators[stage.operators.back()])),
               fmt::format("{}", stage.operators.size()), fmt::format("{}", stage.replicas),
               report::human_duration(stage.compute_s), report::human_duration(stage.compute_s / stage.replicas)});
  }
  fmt::print("{}\n{} a minibatch under PipeDream's cost model, {:.2f} times as fast as data parallel ({})\n",
             table.str(), report::human_duration(plan.cost_s), plan.data_parallel_s / plan.cost_s,
             report::human_duration(plan.data_parallel_s));
  if (!plan.all_prefixes) {
    fmt::print("The graph has more cuts than can be looked at: only those in the order of the layers were.\n");
  }
}

void plan_graph(const PlanArguments& arguments) {
  const std::vector<plan::PipeDreamLevel> levels = read_levels(arguments);
  const profile::Profile profile =
      profile::parse_pipedream_graph(job::read_small_file(arguments.graph, "graph file"), arguments.graph);
  if (!arguments.json.empty()) report::check_file(arguments.json, "--json");
  const plan::PipeDreamPlan plan = plan::pipedream_plan(profile, levels);
  if (!arguments.json.empty()) report::write_file(arguments.json, to_json(plan, profile).dump(2) + "\n");
  print_plan(plan, profile);
}

// Which of the two forms is meant, with all it needs and nothing of the other.
void check_form(const CLI::App& command, const PlanArguments& arguments) {
  constexpr const char* kOfGraph[] = {"--graph", "--devices", "--bandwidth", "--cost-model"};
  constexpr const char* kOfJob[] = {"--cluster", "--profile", "--svg", "--explain", "--stale", "--set", "--plan"};
  const bool has_graph = command.count("--graph") > 0;
  if (has_graph == !arguments.job.path.empty()) {
    fail_input("plan: {}", has_graph ? "a job and --graph were given; write one of them"
                                     : "write a job, millrace plan JOB --cluster FILE, or --graph with --devices, "
                                       "--bandwidth and --cost-model");
  }
  for (const char* option : kOfGraph) {
    if (has_graph && command.count(option) == 0)
      fail_input("plan: --graph needs {} too; see millrace plan --help", option);
    if (!has_graph && command.count(option) > 0) fail_input("plan: {} goes with --graph, not with a job", option);
  }
  for (const char* option : kOfJob) {
    if (has_graph && command.count(option) > 0) fail_input("plan: {} goes with a job, not with --graph", option);
  }
}

void plan_for_job(const PlanArguments& arguments) {
  job::Job job = arguments.job.read();
  if (arguments.stale) job.parallel.stale = true;
  if (!arguments.json.empty()) report::check_file(arguments.json, "--json");
  if (!arguments.svg.empty()) report::check_file(arguments.svg, "--svg");
  const PlannedChoice planned = plan_job(job, arguments.planning);
  const report::PlannedJob shown{job, planned.graph, planned.cluster, planned.choice};
  fmt::print("{}", report::plan_tables(shown));
  if (arguments.explain) fmt::print("\n{}", report::explain_choice(planned.choice));
  if (!arguments.json.empty()) {
    report::write_file(arguments.json, report::plan_json(shown).dump(2) + "\n");
    fmt::print("\nwritten: {0}; run it with millrace train {1} --plan {0}\n", arguments.json, arguments.job.path);
  }
  if (!arguments.svg.empty()) {
    report::write_file(arguments.svg, report::plan_svg(shown));
    fmt::print("written: {}\n", arguments.svg);
  }
}

}  // namespace

void declare_plan(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<PlanArguments>();
  CLI::App* command = app.add_subcommand("plan", "Choose mode, stages, replicas and micro-batches for a cluster");
  arguments->job.declare(*command);
  command->get_option("JOB")->required(false);
  arguments->planning.declare(*command);
  command->add_flag("--explain", arguments->explain, "Also list every plan that was predicted, and why not");
  command->add_flag("--stale", arguments->stale, "Modes that update without waiting may be chosen (pipedream, ssp)");
  command->add_option("--svg", arguments->svg, "Draw the pipeline over time here")
      ->type_name("FILE")
      ->check(not_empty("plan.svg"));
  command->add_option("--json", arguments->json, "Write the plan here: millrace train JOB --plan FILE runs it")
      ->type_name("FILE")
      ->check(not_empty("plan.json"));
  command->add_option("--graph", arguments->graph, "Instead of a job: costs of the layers (PipeDream's graph.txt)")
      ->type_name("FILE")
      ->check(not_empty("graph.txt"));
  command->add_option("--devices", arguments->devices, "With --graph: devices, or one number per level: 4x4")
      ->type_name("N[xN]");
  command
      ->add_option("--bandwidth", arguments->bandwidth, "With --graph: bytes per second of each level: 1.1e10,1.25e9")
      ->type_name("B[,B]");
  command->add_option("--cost-model", arguments->cost_model, "With --graph: what a plan is taken to cost")
      ->check(CLI::IsMember({"pipedream"}));
  command->footer(
      "The operators are measured here (or read from --profile), pipelines are searched for, and the best of every "
      "mode\n"
      "and number of micro-batches are played through the simulator as they would run. Memory is laid out as a run "
      "lays\n"
      "it out. A plan's \"parallel\" may be edited.\n"
      "With --graph, levels innermost first, PipeDream's cost model: seconds per minibatch of the slowest stage or "
      "link,\n"
      "replicas taking minibatches in turn, sums of gradients added to compute, memory unlimited.");
  command->callback([arguments, command, &action] {
    action = [arguments, command] {
      check_form(*command, *arguments);
      arguments->graph.empty() ? plan_for_job(*arguments) : plan_graph(*arguments);
    };
  });
}

}  // namespace millrace::cli
