// millrace report: a run beside its plan.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "millrace/base/error.h"
#include "millrace/job/small_file.h"
#include "millrace/report/run_directory.h"
#include "millrace/report/side_by_side.h"
#include "millrace/report/transitions.h"

namespace millrace::cli {
namespace {

struct ReportArguments {
  std::string run, json;
};

nlohmann::json read_json(const std::filesystem::path& path, const char* what) {
  try {
    return nlohmann::json::parse(job::read_small_file(path.string(), what));
  } catch (const nlohmann::json::parse_error& error) {
    fail_input("{}: not JSON, at byte {}", path.string(), error.byte);
  }
}

// What froze when, where layers did.
std::string course_of(const std::filesystem::path& run) {
  const std::filesystem::path file = run / "elastic.json";
  if (!std::filesystem::exists(file)) return {};
  try {
    const report::Course course = report::course_from_json(read_json(file, "course"));
    const std::string text = report::transitions_table(course) + report::cache_verdicts(course);
    return text.empty() ? "" : "\n" + text;
  } catch (const nlohmann::json::exception&) {
    fail_input("{}: not what millrace train writes; leave it as it was, or remove it", file.string());
  }
}

void report_run(const ReportArguments& arguments) {
  const std::filesystem::path run(arguments.run);
  if (!std::filesystem::exists(run / "summary.json")) {
    fail_input("{}: no run: summary.json is missing; write the directory that millrace train made", arguments.run);
  }
  if (!arguments.json.empty()) report::check_file(arguments.json, "--json");
  const nlohmann::json summary = read_json(run / "summary.json", "summary");
  const bool planned = std::filesystem::exists(run / "plan.json");
  const nlohmann::json plan = planned ? read_json(run / "plan.json", "plan") : nlohmann::json();
  const std::string course = course_of(run);
  const nlohmann::ordered_json comparison = report::compare_run(summary, plan);
  if (!arguments.json.empty()) report::write_file(arguments.json, comparison.dump(2) + "\n");
  fmt::print("{}{}", report::side_by_side(comparison), course);
  if (!planned) {
    fmt::print("\nThe run had no plan; parallel.mode: auto or millrace train --plan makes one.\n");
  }
}

}  // namespace

void declare_report(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<ReportArguments>();
  CLI::App* command = app.add_subcommand("report", "Set a run beside its plan, and say where its time went");
  command->add_option("RUN", arguments->run, "The run directory")->required()->type_name("DIR");
  command->add_option("--json", arguments->json, "Also write it here")
      ->type_name("FILE")
      ->check(not_empty("report.json"));
  command->footer(
      "Idle time by cause: dependency is there even if all workers had as much to do and messages took no time;\n"
      "imbalance is what unequal stages add; communication is what messages and sums on their way add; straggler is\n"
      "the rest: actions that took longer than they mostly do.");
  command->callback([arguments, &action] { action = [arguments] { report_run(*arguments); }; });
}

}  // namespace millrace::cli
