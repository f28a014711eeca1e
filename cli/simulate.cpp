// millrace simulate: a job's plan played through on a cluster, with the trace that a run would leave.
#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "cli/planning.h"
#include "millrace/base/error.h"
#include "millrace/model/model.h"
#include "millrace/plan/predict.h"
#include "millrace/report/plan_report.h"
#include "millrace/report/run_directory.h"
#include "millrace/report/trace.h"
#include "millrace/report/units.h"

namespace millrace::cli {
namespace {

struct SimulateArguments {
  JobArguments job;
  PlanningArguments planning;
  std::string trace = "trace.json";
  std::string json;
  int updates = 8;
};

void simulate_job(const SimulateArguments& arguments) {
  const job::Job job = arguments.job.read();
  if (job.parallel.mode == job::Mode::Auto) {
    fail_input(
        "simulate: parallel.mode is auto; write the plan first: millrace plan {} --json plan.json, then "
        "simulate with --plan plan.json",
        arguments.job.path);
  }
  report::check_file(arguments.trace, "--trace");
  if (!arguments.json.empty()) report::check_file(arguments.json, "--json");
  const graph::Graph graph = model::training_graph(job, 1);
  const plan::Cluster cluster = find_cluster(arguments.planning.cluster, job);
  const plan::Plan plan = plan::make_plan(job, graph, static_cast<int>(cluster.devices.size()));
  plan::Choice choice;
  choice.candidates.push_back(
      {job.parallel, plan,
       plan::predict(job, plan, find_profiles(job, cluster, arguments.planning.profiles), cluster)});
  const plan::Prediction& prediction = choice.candidates[0].prediction;
  if (!prediction.refusal.empty()) fmt::print(stderr, "millrace: warning: {}\n", prediction.refusal);
  const report::PlannedJob shown{job, graph, cluster, choice};
  fmt::print("{}", report::plan_tables(shown));
  report::write_file(arguments.trace,
                     report::chrome_trace(report::simulated_records(plan, prediction, arguments.updates)));
  if (!arguments.json.empty()) report::write_file(arguments.json, report::plan_json(shown).dump(2) + "\n");
  fmt::print("\nwritten: {}, {} as predicted, for ui.perfetto.dev\n", arguments.trace,
             report::counted(arguments.updates, "step"));
}

}  // namespace

void declare_simulate(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<SimulateArguments>();
  CLI::App* command = app.add_subcommand("simulate", "Predict a run: its time, memory and trace");
  arguments->job.declare(*command);
  arguments->planning.declare(*command);
  command->add_option("--trace", arguments->trace, "Write the predicted trace here")
      ->type_name("FILE")
      ->check(not_empty("trace.json"))
      ->capture_default_str();
  command->add_option("--steps", arguments->updates, "Steps of the trace")
      ->check(CLI::Range(1, 10'000))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--json", arguments->json, "Also write what is predicted here")
      ->type_name("FILE")
      ->check(not_empty("predicted.json"));
  command->footer("The trace has the form of a run's trace.json: one track per worker.");
  command->callback([arguments, &action] { action = [arguments] { simulate_job(*arguments); }; });
}

}  // namespace millrace::cli
