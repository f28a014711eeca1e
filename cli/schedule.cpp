// millrace schedule: shows, proves and times the lists of actions that workers run.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "millrace/base/error.h"
#include "millrace/job/reader.h"
#include "millrace/job/small_file.h"
#include "millrace/model/model.h"
#include "millrace/plan/plan.h"
#include "millrace/report/run_directory.h"
#include "millrace/report/table.h"
#include "millrace/report/units.h"
#include "millrace/schedule/csv.h"
#include "millrace/schedule/picture.h"
#include "millrace/schedule/prover.h"
#include "millrace/schedule/simulator.h"
#include "millrace/schedule/steady.h"

namespace millrace::cli {
namespace {

using schedule::Schedule;

constexpr int kPictureColumns = 110;

struct UnitCosts {
  double forward = 1, input_grad = 1, weight_grad = 1;

  void declare(CLI::App& command) {
    const auto add = [&](const char* option, double& value, const char* what) {
      command.add_option(option, value, fmt::format("Time of {} of a worker's share of the model", what))
          ->check(CLI::Range(0.0, 1e9))
          ->type_name("TIME")
          ->capture_default_str();
    };
    add("--f", forward, "the forward pass");
    add("--i", input_grad, "the input gradients");
    add("--w", weight_grad, "the weight gradients");
  }
  schedule::Timeline simulate(const Schedule& lists) const {
    return schedule::simulate(lists, schedule::unit_costs(lists.pipeline, forward, input_grad, weight_grad));
  }
};

struct ShowArguments {
  JobArguments job;
  std::string csv;
  bool actions = false;
  UnitCosts costs;
};

struct SimulateArguments {
  std::string path, json;
  UnitCosts costs;
};

// Compute actions that make sense by themselves.
Schedule read_lists(const std::string& path) {
  Schedule lists = schedule::read_csv(job::read_small_file(path, "schedule file"), path);
  if (const auto fault = schedule::find_compute_fault(lists)) {
    fail_input("{}: {}", path, schedule::to_text(lists, *fault));
  }
  return lists;
}

struct Counts {
  size_t compute = 0, messages = 0;
};

Counts count_actions(const Schedule& lowered) {
  Counts counts;
  for (const auto& list : lowered.workers) {
    for (const schedule::Action& action : list) {
      counts.compute += schedule::is_compute(action.kind);
      counts.messages += action.kind == schedule::Kind::Send;
    }
  }
  return counts;
}

std::string describe(const Schedule& lowered) {
  const auto [compute, messages] = count_actions(lowered);
  return fmt::format(
      "{}, {}, {}, {}, {}", report::counted(lowered.pipeline.num_workers, "worker"),
      report::counted(lowered.pipeline.num_stages(), "stage"),
      lowered.microbatches == 1 ? "1 micro-batch" : fmt::format("{} micro-batches", lowered.microbatches),
      report::counted(static_cast<int64_t>(compute), "compute action"),
      report::counted(static_cast<int64_t>(messages), "message"));
}

void print_timeline(const Schedule& lists, const schedule::Timeline& timeline) {
  report::Table table({"worker", "stages", "computes", "waits", "peak activations"});
  for (size_t w = 0; w < lists.workers.size(); ++w) {
    double busy = 0;
    std::string stages;
    for (size_t i = 0; i < lists.workers[w].size(); ++i) {
      const schedule::Span& span = timeline.actions[w][i];
      if (schedule::is_compute(lists.workers[w][i].kind)) busy += span.end_s - span.begin_s;
    }
    for (int s = 0; s < lists.pipeline.num_stages(); ++s) {
      const auto& workers = lists.pipeline.stages[s];
      if (std::find(workers.begin(), workers.end(), static_cast<int>(w)) == workers.end()) continue;
      stages += fmt::format("{}{}", stages.empty() ? "" : ", ", s);
    }
    table.add({fmt::format("{}", w), stages, fmt::format("{:.6g}", busy),
               fmt::format("{:.6g}", timeline.makespan_s - busy), fmt::format("{:.6g}", timeline.peak_activations[w])});
  }
  fmt::print("{}\n{}\nmakespan {:.6g}, bubble {}\n", schedule::draw(lists, timeline, kPictureColumns), table.str(),
             timeline.makespan_s, report::human_percent(schedule::bubble(lists, timeline)));
}

void print_actions(const Schedule& lowered) {
  for (size_t w = 0; w < lowered.workers.size(); ++w) {
    fmt::print("\nworker {}\n", w);
    for (size_t i = 0; i < lowered.workers[w].size(); ++i) {
      fmt::print("{:>6}  {}\n", i, schedule::to_text(lowered, lowered.workers[w][i]));
    }
  }
}

void show(const ShowArguments& arguments) {
  const job::Job job = arguments.job.read();
  if (!arguments.csv.empty()) report::check_file(arguments.csv, "--csv");
  const graph::Graph graph = model::training_graph(job, job.batch / job.parallel.microbatches);
  const plan::Plan plan = plan::make_plan(job, graph, 1);
  const Schedule lowered = schedule::steady_lists(plan.pipeline);
  schedule::prove(lowered);
  if (!arguments.csv.empty()) report::write_file(arguments.csv, schedule::to_csv(lowered));
  fmt::print("{}\n", plan::to_text(plan, graph));
  print_timeline(lowered, arguments.costs.simulate(lowered));
  fmt::print("proven: {}\n", describe(lowered));
  if (arguments.actions) print_actions(lowered);
}

void check(const std::string& path) {
  const Schedule lowered = schedule::lower(read_lists(path));
  if (const auto fault = schedule::find_fault(lowered)) {
    fail_input("{}: {}", path, schedule::to_text(lowered, *fault));
  }
  fmt::print("{}: proven: {}\n", path, describe(lowered));
}

void simulate(const SimulateArguments& arguments) {
  const Schedule lists = read_lists(arguments.path);
  if (!arguments.json.empty()) report::check_file(arguments.json, "--json");
  const schedule::Timeline timeline = arguments.costs.simulate(lists);
  print_timeline(lists, timeline);
  if (arguments.json.empty()) return;
  const nlohmann::ordered_json json{
      {"workers", lists.pipeline.num_workers}, {"stages", lists.pipeline.num_stages()},
      {"microbatches", lists.microbatches},    {"makespan", timeline.makespan_s},
      {"peak", timeline.peak_activations},     {"bubble", schedule::bubble(lists, timeline)}};
  report::write_file(arguments.json, json.dump(2) + "\n");
}

constexpr const char* kFileFormat =
    "FILE has one row per worker (the first is worker 0) and one cell per action, in order:\n"
    "stage, F (forward), B (backward) or its halves I (input gradient) and W (weight gradient), micro-batch.\n"
    "  0F0,0F1,0B0,0B1\n"
    "  ,1F0,1B0,1F1,1B1\n"
    "Empty cells, blank lines and what follows a # are skipped. Rows that run the same micro-batches of a stage\n"
    "are replicas that split them; rows that divide them take turns.";

void declare_show(CLI::App& group, Action& action) {
  auto arguments = std::make_shared<ShowArguments>();
  CLI::App* command = group.add_subcommand("show", "Show the lists that a job's workers will run");
  arguments->job.declare(*command);
  command->add_option("--csv", arguments->csv, "Write the compute actions here, one row per worker")
      ->type_name("FILE")
      ->check(not_empty("lists.csv"));
  command->add_flag("--actions", arguments->actions, "Also print every action of every worker");
  arguments->costs.declare(*command);
  command->footer(
      "Times are in units, not measured. Modes that flush show one update, the others as many minibatches as\n"
      "it takes to reach the steady state.");
  command->callback([arguments, &action] { action = [arguments] { show(*arguments); }; });
}

void declare_check(CLI::App& group, Action& action) {
  auto path = std::make_shared<std::string>();
  CLI::App* command = group.add_subcommand("check", "Prove that the lists of a CSV file can run, or say why not");
  command->add_option("FILE", *path, "Compute actions of one update (CSV)")->required()->type_name("FILE");
  command->footer(std::string(kFileFormat) + "\nExit code 0: proven; 2: the fault is named.");
  command->callback([path, &action] { action = [path] { check(*path); }; });
}

void declare_simulate_file(CLI::App& group, Action& action) {
  auto arguments = std::make_shared<SimulateArguments>();
  CLI::App* command = group.add_subcommand("simulate", "Time the lists of a CSV file and count what they hold");
  command->add_option("FILE", arguments->path, "Compute actions of one update (CSV)")->required()->type_name("FILE");
  arguments->costs.declare(*command);
  command->add_option("--json", arguments->json, "Write makespan and peak activations per worker here")
      ->type_name("FILE")
      ->check(not_empty("times.json"));
  command->footer(std::string(kFileFormat) +
                  "\nCommunication is free. Where a worker runs v stages, each costs and holds 1/v of its share.");
  command->callback([arguments, &action] { action = [arguments] { simulate(*arguments); }; });
}

}  // namespace

void declare_schedule(CLI::App& app, Action& action) {
  CLI::App* group = app.add_subcommand("schedule", "Show, prove and time what workers do in which order");
  group->require_subcommand(1);
  declare_show(*group, action);
  declare_check(*group, action);
  declare_simulate_file(*group, action);
}

}  // namespace millrace::cli
