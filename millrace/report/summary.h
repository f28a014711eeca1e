// What a run came to: the numbers of summary.json and of the table printed at the end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "millrace/data/skip_log.h"
#include "millrace/report/parallel_run.h"
#include "millrace/report/percentiles.h"
#include "millrace/report/trace.h"
#include "millrace/runtime/observer.h"

namespace millrace::report {

struct PeakBytes {
  int64_t planned = 0;   // by the arena and everything else planned before the run
  int64_t measured = 0;  // the process's peak above its baseline
  int64_t process = 0;   // the process's peak, with code and libraries
};

struct Accuracy {
  double top1 = 0, top5 = 0;  // fractions, 0 to 1
};

// A number with a name, as a table shows it: "perplexity", "exact_match".
struct Figure {
  std::string name;
  double value = 0;
};

struct Summary {
  std::string model;
  std::string device;
  std::string precision;
  int64_t batch = 0;
  int threads = 0;
  uint64_t seed = 0;
  int64_t parameters = 0;

  int64_t steps = 0;              // with those before first_step
  int64_t first_step = 0;         // more than 0: it went on from a checkpoint
  int64_t samples = 0;            // trained on, counted
  std::optional<double> epoch_s;  // seconds of one epoch of training, the mean; empty when none was finished
  double samples_per_s = 0;
  Percentiles step_ms;
  double gflops = 0;           // per second
  double data_wait_share = 0;  // of the time, waiting for data: 0 to 1
  data::Skipped skipped;
  PeakBytes peak_bytes;
  ParallelRun parallel;  // of the last training, where several followed one another
  SpanCounts trace;

  bool diverged = false;  // stopped at a step whose loss is not finite
  bool stopped = false;   // saved and ended because it was asked to
  std::vector<runtime::Rollback> rollbacks;
  std::vector<std::string> failed_saves;
  double save_wait_s = 0;            // that snapshots kept workers from going on
  std::optional<double> loss;        // of the last steps
  std::optional<Accuracy> accuracy;  // empty when nothing was evaluated
  std::vector<Figure> figures;       // what else the evaluation gave
};

// What all processes skipped in all trainings: each has left the same out of the set, and has read samples of its own.
data::Skipped all_skipped(std::span<const std::vector<runtime::WorkerRecord>> trainings);

// Keys as scripts rely on them; null for what was not measured, and for a loss that is not a number.
nlohmann::ordered_json to_json(const Summary& summary);

// The last file that a run writes.
inline constexpr const char* kLastFile = "summary.json";

// The steps of a run that came to its end: nothing if it was killed, stopped or diverged before, or lacks a file.
std::optional<int64_t> steps_of_whole(const std::filesystem::path& run);

// Two columns, for people; below them the workers, where there are several.
std::string render_table(const Summary& summary);

}  // namespace millrace::report
