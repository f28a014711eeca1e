// millrace profile: what every operator of a job costs on this machine, for the planner.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <set>

#include "cli/commands.h"
#include "cli/measure.h"
#include "millrace/base/error.h"
#include "millrace/job/reader.h"
#include "millrace/job/text.h"
#include "millrace/report/run_directory.h"
#include "millrace/report/table.h"
#include "millrace/report/units.h"
#include "millrace/runtime/profiling.h"

namespace millrace::cli {
namespace {

struct ProfileArguments {
  JobArguments job;
  std::string out = "profile.json";
  std::string rows;
  int repeats = runtime::ProfilingOptions{}.repeats;
  int workers = 1;
};

constexpr int64_t kMostRows = 1'000'000;

std::vector<int64_t> parse_rows(const std::string& text) {
  std::vector<int64_t> all;
  std::set<int64_t> seen;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    const std::string_view word = job::trimmed(std::string_view(text).substr(begin, comma - begin));
    int64_t rows = 0;
    if (job::parse_number(word, rows) != job::NumberFault::Ok || rows < 1 || rows > kMostRows) {
      fail_input("--rows {}: {} is no number of samples from 1 to {}; write e.g. --rows 8,16", job::in_quotes(text),
                 job::in_quotes(word), report::human_count(kMostRows));
    }
    if (!seen.insert(rows).second) fail_input("--rows {}: {} is given twice", job::in_quotes(text), rows);
    all.push_back(rows);
    begin = comma + 1;
  }
  return all;
}

// With several sizes each has a file of its own: profile.json becomes profile-8.json and profile-16.json.
std::string file_for(const std::string& out, int64_t rows, bool alone) {
  if (alone) return out;
  const std::filesystem::path path(out);
  const std::string name = fmt::format("{}-{}{}", path.stem().string(), rows, path.extension().string());
  return (path.parent_path() / name).string();
}

std::string milliseconds(const profile::Seconds& seconds) {
  return seconds.median > 0 ? fmt::format("{:.3f}", seconds.median * 1e3) : "-";
}

std::string bytes_or_none(int64_t bytes) { return bytes > 0 ? report::human_bytes(bytes) : "-"; }

void print_profile(const runtime::Profiled& profiled) {
  const profile::Profile& profile = profiled.profile;
  report::Table table({"operator", "kind", "F ms", "I ms", "W ms", "U ms", "output", "kept", "parameters", "workspace",
                       "algorithm (F I W)"});
  profile::Seconds forward, input_grad, weight_grad, update;
  int64_t kept = 0, params = 0;
  for (const profile::Operator& op : profile.operators) {
    table.add({op.name, op.kind, milliseconds(op.forward), milliseconds(op.input_grad), milliseconds(op.weight_grad),
               milliseconds(op.update), bytes_or_none(op.output_bytes), bytes_or_none(op.kept_bytes),
               bytes_or_none(op.param_bytes), bytes_or_none(op.most_workspace()), op.algorithm});
    forward.median += op.forward.median;
    input_grad.median += op.input_grad.median;
    weight_grad.median += op.weight_grad.median;
    update.median += op.update.median;
    kept += op.kept_bytes;
    params += op.param_bytes;
  }
  table.add_rule();
  table.add({"sum", "", milliseconds(forward), milliseconds(input_grad), milliseconds(weight_grad),
             milliseconds(update), "", bytes_or_none(kept), bytes_or_none(params), "", ""});
  fmt::print("{}, {} a micro-batch, {}\n\n{}", profile.model, report::counted(profile.rows, "sample"), profile.device,
             table.str());
  fmt::print("F forward, I input gradient, W weight gradient, U update; medians\n\n");
  const double gap = runtime::gap(profile);
  fmt::print("operators {}, whole step {} (measured without instruments): {:.1f}% {}\n",
             report::human_duration(runtime::sum_s(profile)), report::human_duration(profile.step_s),
             100 * std::abs(gap), gap < 0 ? "below" : "above");
  if (profiled.attempts > 1) {
    fmt::print(
        "measured {} times, as the two were more than {:.0f}% apart; the attempt with the shortest step is kept\n",
        profiled.attempts, 100 * runtime::kLargestGap);
  }
  if (std::abs(gap) <= runtime::kLargestGap) return;
  fmt::print(stderr,
             "millrace: warning: operators and whole step are more than {:.0f}% apart: other work disturbs this "
             "machine, or --repeats is too small\n",
             100 * runtime::kLargestGap);
}

void profile_job(const ProfileArguments& arguments) {
  const job::Job job = arguments.job.read();
  const std::vector<int64_t> sizes =
      arguments.rows.empty() ? std::vector<int64_t>{job.batch / job.parallel.microbatches} : parse_rows(arguments.rows);
  const bool alone = sizes.size() == 1;
  for (int64_t rows : sizes) report::check_file(file_for(arguments.out, rows, alone), "--out");
  const runtime::OnMeasure on_measure = announce_measuring();
  for (int64_t rows : sizes) {
    runtime::ProfilingOptions options;
    options.rows = rows;
    options.repeats = arguments.repeats;
    options.threads = runtime::thread_count(job, arguments.workers);
    options.beside = arguments.workers - 1;
    const runtime::Profiled profiled = runtime::measure_profile(job, options, machine_limit(job), on_measure);
    const std::string file = file_for(arguments.out, rows, alone);
    report::write_file(file, profile::to_json(profiled.profile));
    print_profile(profiled);
    fmt::print("written: {}\n{}", file, rows == sizes.back() ? "" : "\n");
  }
}

}  // namespace

void declare_profile(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<ProfileArguments>();
  CLI::App* command = app.add_subcommand("profile", "Measure what every operator of a job costs on this machine");
  arguments->job.declare(*command);
  command->add_option("-o,--out", arguments->out, "Write the profile here; with several --rows, one file for each")
      ->type_name("FILE")
      ->check(not_empty("profile.json"))
      ->capture_default_str();
  command
      ->add_option("--rows", arguments->rows,
                   "Samples of a micro-batch, or several: 8,16 (default: the job's batch / parallel.microbatches)")
      ->type_name("N,N...")
      ->check(not_empty("8,16"));
  command->add_option("--repeats", arguments->repeats, "Steps that are timed")
      ->check(CLI::Range(1, 100'000))
      ->type_name("STEPS")
      ->capture_default_str();
  command
      ->add_option(
          "--workers", arguments->workers,
          "Workers that run at once on this machine, as they will: one is measured, the others keep it company")
      ->check(CLI::Range(1, 1024))
      ->type_name("N")
      ->capture_default_str();
  command->footer(
      "One worker runs training steps of one micro-batch; of every operator and pass the median and the middle half's\n"
      "spread are written. With --rows 8,16 -o profile.json the files are profile-8.json and profile-16.json.");
  command->callback([arguments, &action] { action = [arguments] { profile_job(*arguments); }; });
}

}  // namespace millrace::cli
