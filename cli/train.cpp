// millrace train: runs a job and leaves a run directory behind.
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/commands.h"
#include "cli/measure.h"
#include "cli/planning.h"
#include "cli/together.h"
#include "millrace/base/error.h"
#include "millrace/job/fields.h"
#include "millrace/job/reader.h"
#include "millrace/job/small_file.h"
#include "millrace/report/progress.h"
#include "millrace/report/run_directory.h"
#include "millrace/report/summary.h"
#include "millrace/report/trace.h"
#include "millrace/report/units.h"
#include "millrace/runtime/replay.h"
#include "millrace/runtime/training.h"
#include "millrace/state/params_file.h"

namespace millrace::cli {
namespace {

struct TrainArguments {
  JobArguments job;
  std::string out;
  std::string json;
  bool overwrite = false;
};

std::optional<report::Accuracy> accuracy_of(const std::optional<runtime::Metrics>& metrics) {
  if (!metrics || metrics->rows == 0) return std::nullopt;
  return report::Accuracy{metrics->top1 / metrics->rows, metrics->top5 / metrics->rows};
}

// What an evaluation gives besides loss and accuracy: what the data set makes of it, and of a language model how many
// tokens it wavers between.
std::vector<report::Figure> figures_of(const job::Model& model, const std::vector<std::string>& names,
                                       const runtime::Metrics& metrics) {
  std::vector<report::Figure> figures;
  if (job::is_gpt(model)) figures.push_back({"perplexity", std::exp(metrics.loss())});
  for (size_t i = 0; i < names.size(); ++i) figures.push_back({names[i], metrics.figures[i]});
  return figures;
}

// Draws progress and writes metrics.jsonl while the job runs.
class Watcher {
 public:
  Watcher(const job::Job& job, const runtime::Training& training, const report::RunDirectory& directory)
      : model_(job.model), training_(training), log_(directory), shows_epochs_(job.data.train_samples > 0) {
    shown_.phase = "train";
    shown_.steps = training.total_steps();
    if (job.steps == 0) shown_.epochs = static_cast<int64_t>(job.epochs + 0.999);
  }

  runtime::Observer observer() {
    runtime::Observer observer;
    observer.on_step = [this](const runtime::StepReport& step) { on_step(step); };
    observer.on_evaluation = [this](double epoch, const runtime::Metrics& metrics) { on_evaluation(epoch, metrics); };
    observer.stop_if_diverged = true;
    return observer;
  }

  const std::vector<double>& step_ms() const { return step_ms_; }
  void finish() { progress_.finish(); }

 private:
  void on_step(const runtime::StepReport& step) {
    step_ms_.push_back(step.seconds * 1e3);
    pace_.step(step.seconds, step.samples);
    // A single batch is noisy: what is shown follows the last twenty or so.
    const double keep = step.step == 0 ? 0.0 : 0.95;
    const double accuracy = step.metrics.rows > 0 ? step.metrics.top1 / step.metrics.rows : 0;
    shown_.loss = keep * shown_.loss.value_or(0) + (1 - keep) * step.metrics.loss();
    shown_.accuracy = keep * shown_.accuracy.value_or(0) + (1 - keep) * accuracy;
    if (shows_epochs_) {
      shown_.epoch = static_cast<int64_t>(static_cast<double>(step.step) / training_.steps_per_epoch()) + 1;
    }
    shown_.step = step.step + 1;
    shown_.samples_per_s = pace_.samples_per_s();
    shown_.seconds_left = pace_.seconds_left(training_.total_steps() - step.step - 1);
    log_.append({{"step", step.step},
                 {"epoch", step.epoch},
                 {"loss", step.metrics.loss()},
                 {"top1", accuracy},
                 {"lr", step.learning_rate},
                 {"seconds", step.seconds}});
    progress_.update(shown_);  // what was seen is on record, should the run be stopped now
  }

  void on_evaluation(double epoch, const runtime::Metrics& metrics) {
    const auto accuracy = accuracy_of(metrics);
    if (!accuracy) return;
    std::string line =
        fmt::format("epoch {:.4g}: test loss {}, top-1 {}, top-5 {}", epoch, report::human_loss(metrics.loss()),
                    report::human_percent(accuracy->top1), report::human_percent(accuracy->top5));
    nlohmann::ordered_json record{
        {"epoch", epoch}, {"test_loss", metrics.loss()}, {"test_top1", accuracy->top1}, {"test_top5", accuracy->top5}};
    for (const report::Figure& figure : figures_of(model_, training_.figure_names(), metrics)) {
      line += fmt::format(", {} {:.4g}", figure.name, figure.value);
      record["test_" + figure.name] = figure.value;
    }
    progress_.note(line);
    log_.append(record);
  }

  const job::Model& model_;
  const runtime::Training& training_;
  report::MetricsLog log_;
  const bool shows_epochs_;  // not where every step sees the same batch
  report::Progress progress_;
  report::ProgressState shown_;
  report::Pace pace_;
  std::vector<double> step_ms_;
};

report::ParallelRun parallel_run(const job::Job& job, runtime::Training& training, bool diverged) {
  report::ParallelRun run;
  run.mode = job::find_field("parallel.mode")->write(job);
  for (const int versions : training.plan().pipeline.versions) run.weight_delay.push_back(versions - 1);
  // Other processes have left a run that diverged, and cannot be asked.
  const bool all_here = static_cast<int>(training.num_workers()) == training.plan().pipeline.num_workers;
  if (!diverged || all_here) run.workers = training.records();
  return run;
}

report::Summary summarise(const job::Job& job, runtime::Training& training, const runtime::TrainingResult& result,
                          const std::vector<double>& step_ms, const MemoryMeter& memory) {
  report::Summary summary;
  summary.model = job.model.name;
  summary.device = job::find_field("device")->write(job);
  summary.precision = job::find_field("precision")->write(job);
  summary.batch = job.batch;
  summary.threads = training.threads();
  summary.seed = job.seed;
  summary.parameters = training.parameters();
  summary.steps = result.steps;
  summary.samples = result.samples;
  summary.samples_per_s = static_cast<double>(result.samples) / result.train_s;
  summary.step_ms = report::percentiles(step_ms);
  summary.gflops = training.step_flops() / summary.step_ms.p50 * 1e-6;
  summary.data_wait_share = result.data_wait_s / result.train_s;
  summary.peak_bytes = memory.peak(training);
  summary.parallel = parallel_run(job, training, result.diverged);
  summary.skipped = report::all_skipped(summary.parallel.workers);
  summary.parallel.replay = runtime::replay(training.plan(), training.shape(), summary.parallel.workers);
  summary.parallel.step_s = result.train_s / static_cast<double>(std::max<int64_t>(result.steps, 1));
  summary.diverged = result.diverged;
  summary.loss = result.last.loss();
  summary.accuracy = accuracy_of(result.evaluation);
  if (result.evaluation) summary.figures = figures_of(job.model, training.figure_names(), *result.evaluation);
  if (static_cast<double>(result.steps) >= training.steps_per_epoch()) {
    summary.epoch_s = result.train_s / static_cast<double>(result.steps) * training.steps_per_epoch();
  }
  return summary;
}

void check_outputs(const TrainArguments& arguments) {
  if (arguments.out.empty()) {
    report::check_run_directory("runs", true);  // a numbered directory in it
  } else {
    report::check_run_directory(arguments.out, arguments.overwrite);
  }
  if (!arguments.json.empty()) report::check_file(arguments.json, "--json");
}

// Process 0 of several, or the only one.
void train_and_report(const TrainArguments& arguments, const job::Job& job, const std::string& plan_json,
                      runtime::Training& training, const MemoryMeter& memory) {
  const report::RunDirectory directory = arguments.out.empty()
                                             ? report::RunDirectory::create_numbered(job.name)
                                             : report::RunDirectory::create(arguments.out, arguments.overwrite);
  directory.write("job.yaml", job::to_yaml(job));
  if (!plan_json.empty()) directory.write("plan.json", plan_json);
  fmt::print("{}: {}, {} parameters, batch {}, {}, {} planned; writing to {}\n", job.name, job.model.name,
             report::human_large(training.parameters()), job.batch, report::counted(training.total_steps(), "step"),
             report::human_bytes(static_cast<int64_t>(training.planned_bytes())), directory.path().string());
  if (training.remakes_blocks() && job.parallel.recompute == job::Recompute::Auto) {
    fmt::print("memory is short: blocks are computed again before their backward (memory.recompute: off keeps them)\n");
  }
  for (const std::string& note : training.init_notes()) fmt::print("{}: {}\n", job.model.init, note);
  if (training.plan().pipeline.num_workers > 1) fmt::print("{}", plan::to_text(training.plan(), training.graph()));
  std::fflush(stdout);

  Watcher watcher(job, training, directory);
  const runtime::TrainingResult result = training.run(watcher.observer());
  watcher.finish();

  const report::Summary summary = summarise(job, training, result, watcher.step_ms(), memory);
  if (!result.diverged) {
    state::write_params(directory.path() / "model.safetensors", training.graph(), training.state().params);
  }
  const std::string json = report::to_json(summary).dump(2) + "\n";
  directory.write("summary.json", json);
  directory.write("trace.json", report::chrome_trace(summary.parallel.workers));
  if (!arguments.json.empty()) report::write_file(arguments.json, json);
  if (result.diverged) {
    fail_run("{}: diverged at step {} of {}: its loss is {}; write a smaller optimizer.lr or a longer warm-up",
             job.name, result.steps, training.total_steps(), report::human_loss(result.last.loss()));
  }
  fmt::print("{}", report::render_table(summary));
}

void train(const TrainArguments& arguments) {
  std::unique_ptr<comm::Process> process = comm::make_process();
  job::Job job = read_job_together(process, arguments.job);
  std::string plan_json;
  together(process, [&] {
    if (process->rank() == 0) check_outputs(arguments);
    if (!arguments.job.plan.empty() && process->rank() == 0) {
      plan_json = job::read_small_file(arguments.job.plan, "plan");
    }
    job = resolve_auto(*process, job, plan_json);
  });
  const MemoryMeter memory(job);
  std::unique_ptr<runtime::Training> training;
  together(process, [&] {
    const runtime::OnMeasure announce = process->rank() == 0 ? announce_measuring() : runtime::OnMeasure();
    training = std::make_unique<runtime::Training>(job, *process, machine_limit(job), announce);
  });
  if (process->rank() == 0) {
    train_and_report(arguments, job, plan_json, *training, memory);
  } else {
    // What process 0 asks for, in its order.
    training->run({});
    training->records();
    training->state();
  }
}

}  // namespace

void declare_train(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* command = app.add_subcommand("train", "Train a model");
  arguments->job.declare(*command);
  command->add_option("--out", arguments->out, "The run directory (default: runs/<job>-<n>)")
      ->type_name("DIR")
      ->check(not_empty("runs/first"));
  command->add_flag("--overwrite", arguments->overwrite, "Replace the run that --out already holds");
  command->add_option("--json", arguments->json, "Also write the summary here")
      ->type_name("FILE")
      ->check(not_empty("summary.json"));
  command->footer(
      "A run directory holds job.yaml (as resolved), metrics.jsonl, model.safetensors, summary.json and trace.json\n"
      "(what each worker did and when, for ui.perfetto.dev).\n"
      "`millrace keys` lists every key of a job.");
  command->callback([arguments, &action] { action = [arguments] { train(*arguments); }; });
}

}  // namespace millrace::cli
