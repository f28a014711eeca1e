// millrace plan: chooses where a model is cut into stages and how often each is replicated.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "millrace/base/error.h"
#include "millrace/job/small_file.h"
#include "millrace/job/text.h"
#include "millrace/plan/pipedream_cost.h"
#include "millrace/profile/profile.h"
#include "millrace/report/run_directory.h"
#include "millrace/report/table.h"
#include "millrace/report/units.h"

namespace millrace::cli {
namespace {

struct PlanArguments {
  std::string graph, devices, bandwidth, cost_model, json;
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

}  // namespace

void declare_plan(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<PlanArguments>();
  CLI::App* command = app.add_subcommand("plan", "Choose stages and their replicas");
  command->add_option("--graph", arguments->graph, "Costs of the layers (PipeDream's graph.txt)")
      ->required()
      ->type_name("FILE")
      ->check(not_empty("graph.txt"));
  command->add_option("--devices", arguments->devices, "Devices, or one number per level, innermost first: 4x4")
      ->required()
      ->type_name("N[xN]");
  command->add_option("--bandwidth", arguments->bandwidth, "Bytes per second, one per level: 1.1e10,1.25e9")
      ->required()
      ->type_name("B[,B]");
  command->add_option("--cost-model", arguments->cost_model, "What a plan is taken to cost")
      ->required()
      ->check(CLI::IsMember({"pipedream"}));
  command->add_option("--json", arguments->json, "Write cost and stages here")
      ->type_name("FILE")
      ->check(not_empty("plan.json"));
  command->footer(
      "PipeDream's cost model: seconds per minibatch of the slowest stage or link, replicas taking minibatches in\n"
      "turn, sums of gradients added to compute, memory unlimited. first and last of a stage are ids of the graph "
      "file.");
  command->callback([arguments, &action] { action = [arguments] { plan_graph(*arguments); }; });
}

}  // namespace millrace::cli
