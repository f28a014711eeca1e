// millrace train: runs a job and leaves a run directory behind.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "cli/commands.h"
#include "cli/elastic.h"
#include "cli/end_request.h"
#include "cli/measure.h"
#include "cli/planning.h"
#include "cli/resume.h"
#include "cli/supervise.h"
#include "cli/together.h"
#include "millrace/base/error.h"
#include "millrace/job/fields.h"
#include "millrace/job/reader.h"
#include "millrace/job/small_file.h"
#include "millrace/report/progress.h"
#include "millrace/report/run_directory.h"
#include "millrace/report/summary.h"
#include "millrace/report/trace.h"
#include "millrace/report/transitions.h"
#include "millrace/report/units.h"
#include "millrace/runtime/replay.h"
#include "millrace/runtime/succession.h"
#include "millrace/runtime/training.h"
#include "millrace/state/checkpoint.h"
#include "millrace/state/params_file.h"

namespace millrace::cli {
namespace {

struct TrainArguments {
  JobArguments job;
  ResumeArguments resume;
  Supervision supervision;
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
  Watcher(const job::Job& job, comm::Process& process, const runtime::Training& training,
          const report::RunDirectory& directory)
      : model_(job.model),
        figure_names_(training.figure_names()),
        log_(directory,
             {training.first_step(), training.epoch_at(training.first_step()), training.begins_with_evaluation()}),
        checkpoints_(std::filesystem::absolute(directory.path() / "checkpoints")),
        shows_epochs_(job.data.train_samples > 0),
        end_request_(process, [this](const std::string& line) { progress_.note(line); }) {
    shown_.phase = "train";
    shown_.steps = training.total_steps();
    if (job.steps == 0) shown_.epochs = static_cast<int64_t>(job.epochs + 0.999);
  }

  runtime::Observer observer() {
    runtime::Observer observer;
    observer.on_step = [this](const runtime::StepReport& step) { on_step(step); };
    observer.on_evaluation = [this](double epoch, const runtime::Metrics& metrics) { on_evaluation(epoch, metrics); };
    observer.on_note = [this](const std::string& line) { progress_.note(line); };
    observer.wants_to_end = [this] { return end_request_.asked(); };
    observer.checkpoints = checkpoints_;
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
    const double keep = shown_.loss ? 0.95 : 0.0;
    const double accuracy = step.metrics.rows > 0 ? step.metrics.top1 / step.metrics.rows : 0;
    shown_.loss = keep * shown_.loss.value_or(0) + (1 - keep) * step.metrics.loss();
    shown_.accuracy = keep * shown_.accuracy.value_or(0) + (1 - keep) * accuracy;
    if (shows_epochs_) {
      shown_.epoch = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(step.epoch - 1e-9)));
    }
    shown_.step = step.step + 1;
    shown_.steps = step.total_steps;
    shown_.samples_per_s = pace_.samples_per_s();
    shown_.seconds_left = pace_.seconds_left(step.total_steps - step.step - 1);
    append({{"step", step.step},
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
    for (const report::Figure& figure : figures_of(model_, figure_names_, metrics)) {
      line += fmt::format(", {} {:.4g}", figure.name, figure.value);
      record["test_" + figure.name] = figure.value;
    }
    progress_.note(line);
    append(record);
  }

  // A full disk does not end the training; it is said once.
  void append(const nlohmann::ordered_json& record) {
    const std::string failure = log_.append(record);
    if (!failure.empty() && !log_failed_) progress_.note(failure + "; training goes on");
    log_failed_ = !failure.empty();
  }

  const job::Model& model_;
  // Trainings come and go; these stay.
  const std::vector<std::string> figure_names_;
  report::MetricsLog log_;
  bool log_failed_ = false;
  const std::filesystem::path checkpoints_;
  const bool shows_epochs_;  // not where every step sees the same batch
  report::Progress progress_;
  report::ProgressState shown_;
  report::Pace pace_;
  std::vector<double> step_ms_;
  EndRequest end_request_;
};

report::ParallelRun parallel_run(const job::Job& job, const runtime::Training& training,
                                 const std::vector<runtime::WorkerRecord>& records) {
  report::ParallelRun run;
  run.mode = job::find_field("parallel.mode")->write(job);
  for (const int versions : training.plan().pipeline.versions) run.weight_delay.push_back(versions - 1);
  run.workers = records;
  run.gpus_exchange = training.worker(0).endpoint().way();
  return run;
}

report::Summary summarise(int64_t first_step, runtime::Succession& succession, const runtime::TrainingResult& result,
                          const std::vector<double>& step_ms, const MemoryMeter& memory) {
  const job::Job& job = succession.job();
  const runtime::Training& training = succession.training();  // the last
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
  summary.first_step = first_step;
  summary.stopped = result.stopped;
  summary.rollbacks = result.rollbacks;
  summary.failed_saves = result.failed_saves;
  summary.save_wait_s = result.save_wait_s;
  summary.samples_per_s = result.train_s > 0 ? static_cast<double>(result.own_samples) / result.train_s : 0;
  summary.step_ms = report::percentiles(step_ms);
  summary.gflops = training.step_flops() / summary.step_ms.p50 * 1e-6;
  summary.data_wait_share = result.train_s > 0 ? result.data_wait_s / result.train_s : 0;
  summary.peak_bytes = memory.peak(training);
  summary.parallel = parallel_run(job, training, succession.records().back());
  summary.skipped = report::all_skipped(succession.records());
  summary.trace = report::count_spans(succession.records());
  summary.parallel.replay = runtime::replay(training.plan(), training.shape(), summary.parallel.workers);
  summary.parallel.step_s = result.train_s / static_cast<double>(std::max<int64_t>(result.own_steps, 1));
  summary.diverged = result.diverged;
  summary.loss = result.last.loss();
  summary.accuracy = accuracy_of(result.evaluation);
  if (result.evaluation) summary.figures = figures_of(job.model, training.figure_names(), *result.evaluation);
  if (static_cast<double>(result.own_steps) >= training.steps_per_epoch()) {
    summary.epoch_s = summary.parallel.step_s * training.steps_per_epoch();
  }
  return summary;
}

// Of process 0.
struct Start {
  std::optional<Resumed> resumed;
  bool goes_on = false;  // in the run's own directory
  std::string plan_json;
};

void check_outputs(const TrainArguments& arguments, const Start& start) {
  if (start.goes_on) {
    check_later_checkpoints(*start.resumed, arguments.overwrite);
  } else if (arguments.out.empty()) {
    report::check_run_directory("runs", true);  // a numbered directory in it
  } else {
    report::check_run_directory(arguments.out, arguments.overwrite);
  }
  if (!arguments.json.empty()) report::check_file(arguments.json, "--json");
}

report::RunDirectory open_directory(const TrainArguments& arguments, const job::Job& job, const Start& start) {
  if (start.goes_on) {
    set_aside_later_checkpoints(*start.resumed);
    std::error_code ignored;
    std::filesystem::remove(start.resumed->run / report::kLastFile, ignored);  // it is whole no more
    return report::RunDirectory::open(start.resumed->run);
  }
  return arguments.out.empty() ? report::RunDirectory::create_numbered(job.name)
                               : report::RunDirectory::create(arguments.out, arguments.overwrite);
}

void print_beginning(const job::Job& job, const Start& start, const runtime::Training& training,
                     const report::RunDirectory& directory) {
  if (start.resumed) {
    fmt::print("going on from {}\n", start.resumed->checkpoint.directory.string());
    for (const std::string& note : start.resumed->notes) fmt::print("  {}\n", note);
  }
  fmt::print("{}: {}, {} parameters, batch {}, {}, {} planned; writing to {}\n", job.name, job.model.name,
             report::human_large(training.parameters()), job.batch,
             report::counted(training.total_steps() - training.first_step(), "step"),
             report::human_bytes(static_cast<int64_t>(training.planned_bytes())), directory.path().string());
  if (training.remakes_blocks() && job.parallel.recompute == job::Recompute::Auto) {
    fmt::print("memory is short: blocks are computed again before their backward (memory.recompute: off keeps them)\n");
  }
  for (const std::string& note : training.init_notes()) fmt::print("{}: {}\n", job.model.init, note);
  if (training.plan().pipeline.num_workers > 1) fmt::print("{}", plan::to_text(training.plan(), training.graph()));
  if (const std::string way = training.worker(0).endpoint().way(); !way.empty()) fmt::print("GPUs exchange {}\n", way);
  std::fflush(stdout);
}

// Process 0 of several, or the only one.
int train_and_report(const TrainArguments& arguments, const Start& start, comm::Process& process,
                     runtime::Succession& succession, const MemoryMeter& memory) {
  const job::Job job = succession.job();
  const report::RunDirectory directory = open_directory(arguments, job, start);
  directory.write("job.yaml", job::to_yaml(job));
  if (!start.plan_json.empty()) directory.write("plan.json", start.plan_json);
  print_beginning(job, start, succession.training(), directory);

  Watcher watcher(job, process, succession.training(), directory);
  const int64_t first_step = succession.training().first_step();
  const runtime::TrainingResult result = succession.run(watcher.observer());
  watcher.finish();

  runtime::Training& training = succession.training();  // the last
  const report::Summary summary = summarise(first_step, succession, result, watcher.step_ms(), memory);
  const state::State state = training.state();
  if (!result.diverged && !result.stopped) {
    state::write_params(directory.path() / "model.safetensors", training.graph(), state.params);
  }
  const report::Course course{job.name, training.layers(), succession.stretches(), succession.transitions()};
  directory.write("trace.json", report::chrome_trace(course, succession.records()));
  if (job.elastic.freeze != job::Freeze::Off || job.elastic.cache) {
    directory.write("elastic.json", report::to_json(course).dump(2) + "\n");
    directory.write("elastic.svg", report::course_svg(course));
  }
  const std::string json = report::to_json(summary).dump(2) + "\n";
  directory.write(report::kLastFile, json);  // a run that has it is whole
  if (!arguments.json.empty()) report::write_file(arguments.json, json);
  if (result.diverged) {
    fail_run("{}: diverged at step {} of {}: its loss is {}; write a smaller optimizer.lr or a longer warm-up",
             job.name, result.steps, training.total_steps(), report::human_loss(result.last.loss()));
  }
  if (result.stopped) {
    if (result.saved_step < result.steps) {
      fail_run("{}: ended at step {} of {}, and its state could not be saved: {}", job.name, result.steps,
               training.total_steps(),
               result.failed_saves.empty() ? "nothing was done yet" : result.failed_saves.back());
    }
    fmt::print("saved at step {} of {}; go on with: millrace train --resume {}\n", result.steps, training.total_steps(),
               directory.path().string());
    return kSavedAndEnded;
  }
  fmt::print("{}{}{}", report::render_table(summary), report::transitions_table(course),
             report::cache_verdicts(course));
  return 0;
}

void check_position(const Start& start, const runtime::Training& training) {
  const auto& [directory, manifest] = start.resumed->checkpoint;
  if (manifest.train_samples != training.train_samples()) {
    fail_input("{} was made with {} samples of training data, now there are {}; name the same data", directory.string(),
               manifest.train_samples, training.train_samples());
  }
  // A run may have been ended between its last step and its last file.
  const bool is_finished = start.goes_on && report::steps_of_whole(start.resumed->run) == manifest.step;
  if (manifest.step > training.total_steps() || (manifest.step == training.total_steps() && is_finished)) {
    fail_input("{} is at step {} of {}: nothing is left to do; write --set steps={} or more epochs", directory.string(),
               manifest.step, training.total_steps(), 2 * manifest.step);
  }
}

// The job and, on process 0, where it goes on from.
job::Job read_together(std::unique_ptr<comm::Process>& process, const TrainArguments& arguments, Start& start) {
  const bool resumes = !arguments.resume.from.empty();
  return read_job_together(process, resumes ? arguments.resume.from : arguments.job.path, [&] {
    if (!resumes && arguments.job.path.empty()) {
      fail_input("train: JOB is missing; write millrace train job.yaml, or --resume RUN; see millrace train --help");
    }
    if (!resumes) return arguments.job.read();
    start.resumed = resume(arguments.resume, arguments.job);
    start.goes_on = arguments.out.empty() && !start.resumed->run.empty();
    return start.resumed->job;
  });
}

plan::FreezeState freezing_of(const Start& start, const job::Job& job) {
  if (start.resumed && start.resumed->checkpoint.manifest.freezing) {
    return *start.resumed->checkpoint.manifest.freezing;
  }
  return first_freezing(job);
}

int train(const TrainArguments& arguments) {
  std::unique_ptr<comm::Process> process = comm::make_process();
  Start start;
  job::Job job = read_together(process, arguments, start);
  together(process, [&] {
    if (process->rank() != 0) return;
    check_outputs(arguments, start);
    if (!arguments.job.plan.empty()) start.plan_json = job::read_small_file(arguments.job.plan, "plan");
  });
  together(process, [&] { job = resolve_auto(*process, job, start.plan_json); });
  const std::string checkpoint = process->broadcast(
      start.resumed ? std::filesystem::absolute(start.resumed->checkpoint.directory).string() : std::string());
  const MemoryMeter memory(job);
  std::unique_ptr<runtime::Training> training;
  const std::shared_ptr<runtime::PrefixCaches> caches = job.elastic.cache ? make_caches(process, job) : nullptr;
  together(
      process,
      [&] {
        const runtime::OnMeasure announce = process->rank() == 0 ? announce_measuring() : runtime::OnMeasure();
        runtime::StateReader reader;
        if (!checkpoint.empty()) {
          reader = [&](const runtime::Session::Wanted& wanted) {
            return state::read_state(checkpoint, state::read_manifest(checkpoint), wanted);
          };
        }
        const plan::FreezeState freezing = freezing_of(start, job);
        training = std::make_unique<runtime::Training>(job, *process, machine_limit(job), announce, reader,
                                                       runtime::Parameters::Now,
                                                       caches ? caches->next(freezing.frozen, 0) : nullptr);
        if (start.resumed) check_position(start, *training);
      },
      [&] { training.reset(); });
  runtime::Succession::Planner planner;
  if (process->rank() == 0 && job.elastic.freeze != job::Freeze::Off) planner = elastic_planner(job, *process);
  runtime::Succession succession(std::move(training), job, *process, machine_limit(job), std::move(planner),
                                 freezing_of(start, job), caches);
  if (process->rank() == 0) return train_and_report(arguments, start, *process, succession, memory);
  // What process 0 asks for, in its order.
  const EndRequest ignored(*process, [](const std::string&) {});
  succession.run({});
  succession.training().state();
  return 0;
}

bool is_supervised(const Supervision& how) {
  return how.restarts > 0 || how.elastic || how.workers > 0 || !how.hosts.empty() || !how.launcher.empty();
}

// Options that would do nothing.
void check_options(const TrainArguments& arguments) {
  const Supervision& how = arguments.supervision;
  const Supervision usual;
  if (arguments.resume.fallback && arguments.resume.from.empty()) {
    fail_input("--fallback: which run it is to go on with is not said; write --resume RUN too");
  }
  if (is_supervised(how)) return;
  const std::pair<const char*, bool> given[] = {{"--hang-after", how.hang_after_s != usual.hang_after_s},
                                                {"--probe-every", how.probe_every_s != usual.probe_every_s},
                                                {"--backoff", how.backoff_s != usual.backoff_s},
                                                {"--grace", how.grace_s != usual.grace_s}};
  for (const auto& [option, is_given] : given) {
    if (is_given) fail_input("{}: is for a training that is started again; write --restarts N too", option);
  }
}

// The same command again, in a child that is watched.
int train_supervised(const TrainArguments& arguments) {
  if (!comm::is_first_process()) throw SilentExit();  // under mpirun, which is refused: once
  check_supervision(arguments.supervision);
  const bool resumes = !arguments.resume.from.empty();
  std::filesystem::path run = arguments.out;
  if (run.empty() && resumes) {
    const std::filesystem::path from = arguments.resume.from;
    const bool is_checkpoint = std::filesystem::exists(from / "manifest.json");
    run = is_checkpoint                      ? from.parent_path().parent_path()
          : from.filename() == "checkpoints" ? from.parent_path()
                                             : from;
  }
  if (!resumes) {
    const job::Job job = arguments.job.read();  // what cannot be read is refused before anything is started
    if (run.empty()) run = report::RunDirectory::next_numbered(job.name);
  }
  std::vector<std::string> words{"train"};
  auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {option, value});
  };
  if (!arguments.job.path.empty()) words.push_back(arguments.job.path);
  for (const std::string& set : arguments.job.sets) add("--set", set);
  add("--plan", arguments.job.plan);
  add("--resume", arguments.resume.from);
  if (arguments.resume.fallback) words.emplace_back("--fallback");
  if (!resumes || !arguments.out.empty()) add("--out", run.string());
  if (arguments.overwrite) words.emplace_back("--overwrite");
  add("--json", arguments.json);
  return supervise(arguments.supervision, std::filesystem::read_symlink("/proc/self/exe").string(), words, run);
}

void declare_supervision(CLI::App& command, Supervision& how) {
  command.add_option("--restarts", how.restarts, "Start again from the newest checkpoint after a fault, so many times")
      ->type_name("N")
      ->check(CLI::NonNegativeNumber);
  command.add_option("--hosts", how.hosts, "Run under mpirun on these hosts, a worker for each slot: a:2,b:2")
      ->type_name("HOST[:SLOTS],...")
      ->check(not_empty("a:2,b:2"));
  command
      .add_option("--workers", how.workers,
                  "Run under mpirun on this host, so many workers; more than it has cores need --launcher\n"
                  "'mpirun --oversubscribe --bind-to none'")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  command.add_flag("--elastic", how.elastic,
                   "With --restarts: go on with the workers that are left, plan anew for them,\n"
                   "and take those back that return");
  command.add_option("--launcher", how.launcher, "In place of mpirun, with its options: 'mpirun --mca btl tcp,self'")
      ->type_name("COMMAND")
      ->check(not_empty("'mpirun --mca btl tcp,self'"));
  command.add_option("--hang-after", how.hang_after_s, "Without a step for so long it hangs, which is a fault")
      ->type_name("SECONDS")
      ->capture_default_str();
  command.add_option("--probe-every", how.probe_every_s, "How often lost hosts are asked whether they are back")
      ->type_name("SECONDS")
      ->capture_default_str();
  command.add_option("--backoff", how.backoff_s, "Before the first restart; doubled for each that comes no further")
      ->type_name("SECONDS")
      ->capture_default_str();
  command.add_option("--grace", how.grace_s, "Between asking a hanging run to end and killing it")
      ->type_name("SECONDS")
      ->capture_default_str();
}

}  // namespace

void declare_train(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* command = app.add_subcommand("train", "Train a model");
  arguments->job.declare(*command, /*required=*/false);
  command->add_option("--resume", arguments->resume.from, "Go on with a run, from its newest checkpoint or one of them")
      ->type_name("RUN")
      ->check(not_empty("runs/first"));
  command->add_flag("--fallback", arguments->resume.fallback, "Pass over damaged checkpoints");
  command->add_option("--out", arguments->out, "The run directory (default: runs/<job>-<n>)")
      ->type_name("DIR")
      ->check(not_empty("runs/first"));
  command->add_flag("--overwrite", arguments->overwrite,
                    "Replace the run that --out already holds; with --resume, drop what is newer");
  command->add_option("--json", arguments->json, "Also write the summary here")
      ->type_name("FILE")
      ->check(not_empty("summary.json"));
  declare_supervision(*command, arguments->supervision);
  command->footer(
      "A run directory holds job.yaml (as resolved), metrics.jsonl, model.safetensors, summary.json, trace.json (what\n"
      "each worker did and when, for ui.perfetto.dev) and, with checkpoint.every, checkpoints.\n"
      "SIGTERM, SIGUSR1 and Ctrl-C twice save a checkpoint and end with exit code 75; --resume goes on exactly there,\n"
      "on the same or another plan.\n"
      "`millrace keys` lists every key of a job.");
  command->callback([arguments, &action] {
    action = [arguments] {
      check_options(*arguments);
      return is_supervised(arguments->supervision) ? train_supervised(*arguments) : train(*arguments);
    };
  });
}

}  // namespace millrace::cli
