// millrace bench: how fast a job's steps run on this machine, and where their time goes.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/measure.h"
#include "millrace/backend/cpu/cpu_backend.h"
#include "millrace/job/reader.h"
#include "millrace/report/percentiles.h"
#include "millrace/report/run_directory.h"
#include "millrace/report/table.h"
#include "millrace/report/units.h"
#include "millrace/runtime/training.h"

namespace millrace::cli {
namespace {

struct BenchArguments {
  JobArguments job;
  int warmup = 2;
  bool layers = false;
  std::string json;
};

struct KindTime {
  std::string name;
  double seconds = 0;
  double flops = 0;
};

struct Measured {
  std::vector<double> step_ms;
  double timed_step_s = 0;  // mean wall time of the steps whose nodes were timed
  std::vector<KindTime> kinds;
  double in_kernels_s = 0;  // per timed step
  report::PeakBytes peak;
};

std::vector<KindTime> by_kind(const runtime::Training& training, const std::vector<runtime::NodeTime>& times,
                              int steps) {
  std::map<std::string, KindTime> kinds;
  for (const runtime::NodeTime& time : times) {
    const std::string name = fmt::format("{} {}", name_of(time.node->kind), name_of(time.node->pass));
    KindTime& kind = kinds[name];
    kind.name = name;
    kind.seconds += time.seconds / steps;
    const graph::Op& op = training.graph().ops[time.node->op];
    if (time.node->kind == op.kind) kind.flops += graph::forward_flops(training.graph(), op);
  }
  std::vector<KindTime> sorted;
  for (auto& [name, kind] : kinds) sorted.push_back(kind);
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return sorted;
}

// Six digits at most.
std::string milliseconds(double seconds) { return fmt::format("{:.{}f}", seconds * 1e3, seconds < 9.999995 ? 2 : 0); }

std::string layer_table(const runtime::Training& training, const std::vector<runtime::NodeTime>& times, int steps) {
  report::Table table({"layer", "operator", "pass", "algorithm", "ms", "GFLOP/s"});
  for (const runtime::NodeTime& time : times) {
    const graph::Op& op = training.graph().ops[time.node->op];
    const double flops = time.node->kind == op.kind ? graph::forward_flops(training.graph(), op) : 0;
    const double seconds = time.seconds / steps;
    table.add({time.node->name, name_of(time.node->kind), name_of(time.node->pass), time.algorithm,
               milliseconds(seconds), flops > 0 ? report::human_number(flops / seconds * 1e-9) : "-"});
  }
  return table.str();
}

// The letters of graph::Pass that stand behind an operator in a training step.
constexpr const char* kPassLegend = "F forward, I input gradient, W weight gradient, U update";

// Of the plan; for small models code and libraries are most of what is measured, and a share would mislead.
std::string memory_row(const report::PeakBytes& peak) {
  constexpr int64_t kSmall = int64_t{64} << 20;
  std::string both =
      fmt::format("planned {}, measured {}", report::human_bytes(peak.planned), report::human_bytes(peak.measured));
  if (peak.planned < kSmall) return both;
  const auto off = static_cast<double>(peak.measured - peak.planned);
  return fmt::format("{} ({:+.1f}%)", both, 100 * off / static_cast<double>(peak.planned));
}

std::string arithmetic_row(double gflops, double peak_gflops) {
  if (peak_gflops <= 0) return fmt::format("{} GFLOP/s", report::human_number(gflops));
  return fmt::format(
      "{} GFLOP/s, {:.0f}% of the measured peak of {} (Winograd needs fewer operations than are counted)",
      report::human_number(gflops), 100 * gflops / peak_gflops, report::human_number(peak_gflops));
}

void bench(const BenchArguments& arguments) {
  constexpr int kTimedSteps = 2;
  job::Job job = arguments.job.read();
  const int64_t steps = job.steps > 0 ? job.steps : 10;
  job.steps = arguments.warmup + steps + kTimedSteps;
  job.eval.every_epochs = 0;
  job.data.test_samples = 0;
  if (!arguments.json.empty()) report::check_file(arguments.json, "--json");

  Measured measured;
  const MemoryMeter memory_meter;
  const std::unique_ptr<comm::Process> process = comm::make_local_process();
  runtime::Training training(job, *process, machine_limit(), announce_measuring());
  training.time_nodes_from(arguments.warmup + steps);
  runtime::Observer observer;
  observer.on_step = [&](const runtime::StepReport& step) {
    const int64_t i = step.step - arguments.warmup;
    if (i >= 0 && i < steps) measured.step_ms.push_back(step.seconds * 1e3);
    if (i >= steps) measured.timed_step_s += step.seconds / kTimedSteps;
    if (i == steps - 1) {
      measured.peak = memory_meter.peak(training);
    }
  };
  const runtime::TrainingResult result = training.run(observer);
  const auto& times = training.session().node_times();
  measured.kinds = by_kind(training, times, kTimedSteps);
  for (const KindTime& kind : measured.kinds) measured.in_kernels_s += kind.seconds;

  const report::Percentiles step_ms = report::percentiles(measured.step_ms);
  const double samples_per_s = static_cast<double>(job.batch) / step_ms.p50 * 1e3;
  const double gflops = training.step_flops() / step_ms.p50 * 1e-6;
  const double peak_gflops = job.device == job::Device::Cpu ? backend::measure_peak_gflops(training.threads()) : 0;
  const double outside = std::max(0.0, 1.0 - measured.in_kernels_s / measured.timed_step_s);
  const report::PeakBytes& peak = measured.peak;

  if (arguments.layers) fmt::print("{}{}\n\n", layer_table(training, times, kTimedSteps), kPassLegend);
  report::Table table;
  table.add({"model", fmt::format("{}, {} parameters", job.model.name, report::human_large(training.parameters()))});
  table.add(
      {"batch", fmt::format("{}, {}", report::human_count(job.batch), report::counted(training.threads(), "thread"))});
  table.add({"speed", fmt::format("{} samples/s (median of {})", report::human_number(samples_per_s),
                                  report::counted(steps, "step"))});
  table.add(
      {"step", fmt::format("p10 {}   p50 {}   p90 {}", report::human_duration(step_ms.p10 * 1e-3),
                           report::human_duration(step_ms.p50 * 1e-3), report::human_duration(step_ms.p90 * 1e-3))});
  table.add({"arithmetic", arithmetic_row(gflops, peak_gflops)});
  table.add({"memory", memory_row(peak)});
  table.add({"outside kernels", fmt::format("{:.2f}% of a step", 100 * outside)});
  fmt::print("{}\n", table.str());

  report::Table kinds({"operator", "ms/step", "share", "GFLOP/s"});
  for (const KindTime& kind : measured.kinds) {
    kinds.add({kind.name, milliseconds(kind.seconds),
               fmt::format("{:.1f}%", 100 * kind.seconds / measured.timed_step_s),
               kind.flops > 0 ? report::human_number(kind.flops / kind.seconds * 1e-9) : "-"});
  }
  fmt::print("{}{}\n\n", kinds.str(), kPassLegend);
  report::Table memory({"memory at the peak", "MiB"});
  for (const auto& item : training.session().memory().items) {
    memory.add({item.what, fmt::format("{:.1f}", static_cast<double>(item.bytes) / (1 << 20))});
  }
  fmt::print("{}", memory.str());

  if (arguments.json.empty()) return;
  nlohmann::ordered_json json{
      {"model", job.model.name},
      {"batch", job.batch},
      {"threads", training.threads()},
      {"parameters", training.parameters()},
      {"samples_per_s", samples_per_s},
      {"step_ms", {{"p10", step_ms.p10}, {"p50", step_ms.p50}, {"p90", step_ms.p90}}},
      {"gflops", gflops},
      {"peak_gflops", peak_gflops},
      {"peak_bytes", {{"planned", peak.planned}, {"measured", peak.measured}, {"process", peak.process}}},
      {"outside_kernels_share", outside},
      {"loss", result.last.loss()},
  };
  for (const KindTime& kind : measured.kinds) json["operators_ms"][kind.name] = kind.seconds * 1e3;
  for (const auto& item : training.session().memory().items) json["memory_bytes"][item.what] = item.bytes;
  report::write_file(arguments.json, json.dump(2) + "\n");
}

}  // namespace

void declare_bench(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<BenchArguments>();
  CLI::App* command = app.add_subcommand("bench", "Measure how fast a job's steps run and where their time goes");
  arguments->job.declare(*command);
  command->add_option("--warmup", arguments->warmup, "Steps before the measured ones")
      ->check(CLI::Range(0, 1'000'000))
      ->type_name("STEPS")
      ->capture_default_str();
  command->add_flag("--layers", arguments->layers, "Also print every layer and pass");
  command->add_option("--json", arguments->json, "Write the record here")
      ->type_name("FILE")
      ->check(not_empty("record.json"));
  command->callback([arguments, &action] { action = [arguments] { bench(*arguments); }; });
}

}  // namespace millrace::cli
