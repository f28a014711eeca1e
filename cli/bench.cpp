// millrace bench: how fast a job's steps run on this machine, and where their time goes.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/measure.h"
#include "millrace/backend/cpu/cpu_backend.h"
#include "millrace/backend/cuda/cuda_backend.h"
#include "millrace/job/fields.h"
#include "millrace/job/reader.h"
#include "millrace/model/model.h"
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
  double floor_s = 0;  // what its operations or its bytes would take at the device's measured rates; 0: not measured
};

// Of the device; 0 where it was not measured.
struct Rates {
  double flops_per_s = 0;
  double bytes_per_s = 0;
};

struct Measured {
  std::vector<double> step_ms;
  double timed_step_s = 0;  // mean wall time of the steps whose nodes were timed
  std::vector<KindTime> kinds;
  double in_kernels_s = 0;  // per timed step
  report::PeakBytes peak;
};

// The fewest bytes a node can move: each operand once.
double bytes_of_node(const runtime::Session& session, const graph::Node& node) {
  double bytes = 0;
  for (const auto& ids : {node.reads, node.writes}) {
    for (graph::BufferId id : ids) bytes += static_cast<double>(session.buffer_bytes(id));
  }
  return bytes;
}

std::vector<KindTime> by_kind(runtime::Training& training, const std::vector<runtime::NodeTime>& times, int steps,
                              const Rates& rates) {
  std::map<std::string, KindTime> kinds;
  for (const runtime::NodeTime& time : times) {
    const std::string name = fmt::format("{} {}", name_of(time.node->kind), name_of(time.node->pass));
    KindTime& kind = kinds[name];
    kind.name = name;
    kind.seconds += time.seconds / steps;
    const graph::Op& op = training.graph().ops[time.node->op];
    const double flops = time.node->kind == op.kind ? graph::forward_flops(training.graph(), op) : 0;
    kind.flops += flops;
    if (rates.bytes_per_s > 0) {
      kind.floor_s +=
          std::max(flops / rates.flops_per_s, bytes_of_node(training.session(), *time.node) / rates.bytes_per_s);
    }
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

std::string arithmetic_row(double gflops, double peak_gflops, bool winograd) {
  if (peak_gflops <= 0) return fmt::format("{} GFLOP/s", report::human_number(gflops));
  return fmt::format("{} GFLOP/s, {:.0f}% of the measured peak of {}{}", report::human_number(gflops),
                     100 * gflops / peak_gflops, report::human_number(peak_gflops),
                     winograd ? " (Winograd and Strassen need fewer operations than are counted)" : "");
}

Rates measure_rates(const job::Job& job, int threads) {
  if (job.device == job::Device::Cpu) return {backend::measure_peak_gflops(threads) * 1e9, 0};
  if (job.device != job::Device::Cuda) return {};
  const backend::CudaPeaks peaks =
      backend::measure_cuda_peaks(0, model::value_type(job.precision), job.precision != job::Precision::Fp32);
  return {peaks.flops_per_s, peaks.bytes_per_s};
}

void bench(const BenchArguments& arguments) {
  constexpr int kTimedSteps = 2;
  job::Job job = arguments.job.read();
  const int64_t steps = job.steps > 0 ? job.steps : 10;
  job.steps = arguments.warmup + steps + kTimedSteps;
  job.eval.every_epochs = 0;
  job.checkpoint = {};
  job.data.test_samples = 0;
  if (!arguments.json.empty()) report::check_file(arguments.json, "--json");

  Measured measured;
  const MemoryMeter memory_meter(job);
  const std::unique_ptr<comm::Process> process = comm::make_local_process();
  runtime::Training training(job, *process, machine_limit(job), announce_measuring());
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
  const Rates rates = measure_rates(job, training.threads());
  measured.kinds = by_kind(training, times, kTimedSteps, rates);
  for (const KindTime& kind : measured.kinds) measured.in_kernels_s += kind.seconds;

  const report::Percentiles step_ms = report::percentiles(measured.step_ms);
  const double samples_per_s = static_cast<double>(job.batch) / step_ms.p50 * 1e3;
  const double gflops = training.step_flops() / step_ms.p50 * 1e-6;
  const double peak_gflops = rates.flops_per_s * 1e-9;
  const double outside = std::max(0.0, 1.0 - measured.in_kernels_s / measured.timed_step_s);
  const report::PeakBytes& peak = measured.peak;

  if (arguments.layers) fmt::print("{}{}\n\n", layer_table(training, times, kTimedSteps), kPassLegend);
  report::Table table;
  table.add({"model", fmt::format("{}, {} parameters", job.model.name, report::human_large(training.parameters()))});
  table.add({"batch", report::human_count(job.batch)});
  table.add({"device", fmt::format("{}, {}", runtime::device_name(job, training.threads()),
                                   job::find_field("precision")->write(job))});
  table.add({"speed", fmt::format("{} samples/s (median of {})", report::human_number(samples_per_s),
                                  report::counted(steps, "step"))});
  table.add(
      {"step", fmt::format("p10 {}   p50 {}   p90 {}", report::human_duration(step_ms.p10 * 1e-3),
                           report::human_duration(step_ms.p50 * 1e-3), report::human_duration(step_ms.p90 * 1e-3))});
  table.add({"arithmetic", arithmetic_row(gflops, peak_gflops, job.device == job::Device::Cpu)});
  table.add({"memory", memory_row(peak)});
  // On a GPU the timed steps are not those that were measured: marks stand between their nodes.
  const bool on_gpu = job.device == job::Device::Cuda;
  if (!on_gpu) table.add({"outside kernels", fmt::format("{:.2f}% of a step", 100 * outside)});
  fmt::print("{}\n", table.str());

  std::vector<std::string> header{"operator", "ms/step", "share", "GFLOP/s"};
  const bool has_floor = rates.bytes_per_s > 0;
  if (has_floor) header.push_back("floor ms");
  report::Table kinds(header);
  for (const KindTime& kind : measured.kinds) {
    std::vector<std::string> row{kind.name, milliseconds(kind.seconds),
                                 fmt::format("{:.1f}%", 100 * kind.seconds / measured.timed_step_s),
                                 kind.flops > 0 ? report::human_number(kind.flops / kind.seconds * 1e-9) : "-"};
    if (has_floor) row.push_back(milliseconds(kind.floor_s));
    kinds.add(row);
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
      {"peak_bytes_per_s", rates.bytes_per_s},
      {"peak_bytes", {{"planned", peak.planned}, {"measured", peak.measured}, {"process", peak.process}}},
      {"loss", result.last.loss()},
  };
  if (!on_gpu) json["outside_kernels_share"] = outside;
  for (const KindTime& kind : measured.kinds) {
    json["operators_ms"][kind.name] = kind.seconds * 1e3;
    if (kind.floor_s > 0) json["floor_ms"][kind.name] = kind.floor_s * 1e3;
  }
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
