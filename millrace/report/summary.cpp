#include "millrace/report/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "millrace/report/table.h"
#include "millrace/report/units.h"

namespace millrace::report {
namespace {

using nlohmann::ordered_json;

ordered_json number(std::optional<double> value) {
  return value && std::isfinite(*value) ? ordered_json(*value) : ordered_json(nullptr);
}

}  // namespace

data::Skipped all_skipped(std::span<const std::vector<runtime::WorkerRecord>> trainings) {
  data::Skipped all;
  for (const std::vector<runtime::WorkerRecord>& workers : trainings) {
    for (const runtime::WorkerRecord& worker : workers) {
      all.left_out = std::max(all.left_out, worker.skipped.left_out);
      all.while_reading += worker.skipped.while_reading;
      for (const std::string& reason : worker.skipped.reasons) {
        const bool known = std::find(all.reasons.begin(), all.reasons.end(), reason) != all.reasons.end();
        if (!known && all.reasons.size() < data::SkipLog::kKept) all.reasons.push_back(reason);
      }
    }
  }
  return all;
}

std::optional<int64_t> steps_of_whole(const std::filesystem::path& run) {
  std::ifstream in(run / kLastFile);
  try {
    const auto json = nlohmann::json::parse(in);
    if (json.at("stopped").get<bool>() || json.at("diverged").get<bool>()) return std::nullopt;
    return json.at("steps").get<int64_t>();
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;  // there is none, or it is no longer what was written
  }
}

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
  json["skipped"] = {
      {"left_out", s.skipped.left_out}, {"while_reading", s.skipped.while_reading}, {"reasons", s.skipped.reasons}};
  json["peak_bytes"] = {
      {"planned", s.peak_bytes.planned}, {"measured", s.peak_bytes.measured}, {"process", s.peak_bytes.process}};
  add_json(json, s.parallel);
  json["trace"] = {{"spans", s.trace.kept}, {"spans_left_out", s.trace.left_out}};
  json["diverged"] = s.diverged;
  json["stopped"] = s.stopped;
  json["first_step"] = s.first_step;
  json["save_wait_s"] = s.save_wait_s;
  json["failed_saves"] = s.failed_saves;
  json["rollbacks"] = nlohmann::ordered_json::array();
  for (const runtime::Rollback& rollback : s.rollbacks) {
    json["rollbacks"].push_back({{"step", rollback.step}, {"loss", number(rollback.loss)}, {"to", rollback.to}});
  }
  json["loss"] = number(s.loss);
  json["accuracy"] = {{"top1", number(s.accuracy ? std::optional(s.accuracy->top1) : std::nullopt)},
                      {"top5", number(s.accuracy ? std::optional(s.accuracy->top5) : std::nullopt)}};
  for (const Figure& figure : s.figures) json["figures"][figure.name] = number(figure.value);
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
  if (s.first_step > 0) table.add({"went on from", fmt::format("step {}", human_count(s.first_step))});
  for (const runtime::Rollback& rollback : s.rollbacks) {
    table.add({"rolled back",
               fmt::format("step {}: loss {}; state of step {}, on with step {}", human_count(rollback.step),
                           human_loss(rollback.loss), human_count(rollback.to), human_count(rollback.step + 1))});
  }
  for (const std::string& failure : s.failed_saves) table.add({"not saved", failure});
  if (s.epoch_s) table.add({"epoch", human_duration(*s.epoch_s)});
  table.add({"waiting for data", human_percent(s.data_wait_share)});
  if (s.skipped.left_out > 0) table.add({"left out", counted(s.skipped.left_out, "sample")});
  if (s.skipped.while_reading > 0) {
    table.add({"skipped", fmt::format("{} times a sample that cannot be used", human_count(s.skipped.while_reading))});
  }
  add_rows(table, s.parallel, s.steps);
  if (s.trace.left_out > 0) {
    table.add({"trace", fmt::format("{} of {} spans: the first ones of each training", human_count(s.trace.kept),
                                    human_count(s.trace.kept + s.trace.left_out))});
  }
  table.add({"peak memory", fmt::format("{} planned, {} measured", human_bytes(s.peak_bytes.planned),
                                        human_bytes(s.peak_bytes.measured))});
  if (s.loss) table.add({"loss", human_loss(*s.loss)});
  if (s.accuracy) {
    table.add({"test accuracy",
               fmt::format("{} top-1, {} top-5", human_percent(s.accuracy->top1), human_percent(s.accuracy->top5))});
  }
  for (const Figure& figure : s.figures) table.add({"test " + figure.name, fmt::format("{:.4g}", figure.value)});
  const std::string workers = worker_table(s.parallel);
  std::string text = table.str();
  if (!workers.empty()) text += "\n" + workers;
  if (!s.skipped.reasons.empty()) text += "\n";
  for (const std::string& reason : s.skipped.reasons) text += "skipped: " + reason + "\n";
  return text;
}

}  // namespace millrace::report
