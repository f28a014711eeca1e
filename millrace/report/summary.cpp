#include "millrace/report/summary.h"

#include <fmt/format.h>

#include <cmath>

#include "millrace/report/table.h"
#include "millrace/report/units.h"

namespace millrace::report {
namespace {

using nlohmann::ordered_json;

ordered_json number(std::optional<double> value) {
  return value && std::isfinite(*value) ? ordered_json(*value) : ordered_json(nullptr);
}

}  // namespace

ordered_json to_json(const Summary& s) {
  const Percentiles& step = s.step_ms;
  ordered_json json;
  json["model"] = s.model;
  json["batch"] = s.batch;
  json["threads"] = s.threads;
  json["seed"] = s.seed;
  json["device"] = s.device;
  json["precision"] = s.precision;
  json["parameters"] = s.parameters;
  json["steps"] = s.steps;
  json["samples"] = s.samples;
  json["epoch_s"] = number(s.epoch_s);
  json["samples_per_s"] = number(s.samples_per_s);
  json["step_ms"] = {{"p10", number(step.p10)}, {"p50", number(step.p50)}, {"p90", number(step.p90)}};
  json["gflops"] = number(s.gflops);
  json["data_wait_share"] = number(s.data_wait_share);
  json["peak_bytes"] = {
      {"planned", s.peak_bytes.planned}, {"measured", s.peak_bytes.measured}, {"process", s.peak_bytes.process}};
  add_json(json, s.parallel);
  json["diverged"] = s.diverged;
  json["loss"] = number(s.loss);
  json["accuracy"] = {{"top1", number(s.accuracy ? std::optional(s.accuracy->top1) : std::nullopt)},
                      {"top5", number(s.accuracy ? std::optional(s.accuracy->top5) : std::nullopt)}};
  return json;
}

std::string render_table(const Summary& s) {
  const Percentiles& step = s.step_ms;
  Table table;
  table.add({"model", fmt::format("{}, {} parameters", s.model, human_large(s.parameters))});
  const std::string with = s.device == "cuda" ? "" : counted(s.threads, "thread") + ", ";
  table.add({"ran on", fmt::format("{}, {}{}", s.device, with, s.precision)});
  table.add({"trained", fmt::format("{} of {}: {}", counted(s.steps, "step"), human_count(s.batch),
                                    counted(s.samples, "sample"))});
  table.add({"speed", fmt::format("{} samples/s, {} GFLOP/s", human_number(s.samples_per_s), human_number(s.gflops))});
  table.add({"step", fmt::format("{} (p10 {}, p90 {})", human_duration(step.p50 / 1e3), human_duration(step.p10 / 1e3),
                                 human_duration(step.p90 / 1e3))});
  if (s.epoch_s) table.add({"epoch", human_duration(*s.epoch_s)});
  table.add({"waiting for data", human_percent(s.data_wait_share)});
  add_rows(table, s.parallel, s.steps);
  table.add({"peak memory", fmt::format("{} planned, {} measured", human_bytes(s.peak_bytes.planned),
                                        human_bytes(s.peak_bytes.measured))});
  if (s.loss) table.add({"loss", human_loss(*s.loss)});
  if (s.accuracy) {
    table.add({"test accuracy",
               fmt::format("{} top-1, {} top-5", human_percent(s.accuracy->top1), human_percent(s.accuracy->top5))});
  }
  const std::string workers = worker_table(s.parallel);
  return workers.empty() ? table.str() : table.str() + "\n" + workers;
}

}  // namespace millrace::report
