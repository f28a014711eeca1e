#include "millrace/report/plan_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "millrace/job/fields.h"
#include "millrace/report/table.h"
#include "millrace/report/units.h"
#include "millrace/schedule/picture.h"

namespace millrace::report {
namespace {

using nlohmann::ordered_json;
using plan::Candidate;

constexpr int kPictureColumns = 100;
constexpr size_t kMostLinks = 8;

std::string bytes(double value) { return human_bytes(std::llround(value)); }

std::string device_names(const plan::Plan& plan, int stage) {
  std::vector<std::string> names;
  for (int worker : plan.pipeline.stages[stage]) {
    names.push_back(fmt::format("{}:{}", plan.devices[worker].node, plan.devices[worker].device));
  }
  if (names.size() > 4) return fmt::format("{} .. {} ({})", names.front(), names.back(), names.size());
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string row_counts(const plan::Plan& plan, int stage) {
  std::vector<int64_t> rows;
  for (int r = 0; r < plan.pipeline.num_replicas(stage); ++r) rows.push_back(plan.rows(stage, r).size());
  if (std::all_of(rows.begin(), rows.end(), [&](int64_t r) { return r == rows[0]; })) return fmt::format("{}", rows[0]);
  if (rows.size() > 4) {
    return fmt::format("{} to {}", *std::min_element(rows.begin(), rows.end()),
                       *std::max_element(rows.begin(), rows.end()));
  }
  return fmt::format("{}", fmt::join(rows, " + "));
}

std::string layer_range(const PlannedJob& planned, const plan::Plan& plan, int stage) {
  const graph::StageSlice slice = plan.slice(stage);
  const auto& ops = planned.graph.ops;
  return fmt::format("{} to {}", ops[slice.begin()].name, ops[slice.end(planned.graph) - 1].name);
}

std::string stage_table(const PlannedJob& planned) {
  const Candidate& best = planned.choice.candidates[0];
  Table table({"stage", "layers", "devices", "rows", "time", "weights", "gradients", "optimizer", "activations",
               "buffers", "workspace", "memory"});
  for (int s = 0; s < best.plan.pipeline.num_stages(); ++s) {
    const plan::StagePrediction& stage = best.prediction.stages[s];
    const plan::StageMemory& memory = stage.memory;
    const std::string versions = memory.versions > 1 ? fmt::format(" (x{})", memory.versions) : "";
    const std::string slots = memory.in_flight > 1 ? fmt::format(" (x{})", memory.in_flight) : "";
    table.add({fmt::format("{}", s), layer_range(planned, best.plan, s), device_names(best.plan, s),
               row_counts(best.plan, s), human_duration(stage.compute_s), bytes(memory.weights) + versions,
               bytes(memory.gradients), bytes(memory.optimizer), bytes(memory.activations) + slots,
               bytes(memory.buffers), bytes(memory.workspace), bytes(memory.total())});
  }
  return table.str();
}

double most_bytes(const Candidate& candidate) {
  return *std::max_element(candidate.prediction.worker_bytes.begin(), candidate.prediction.worker_bytes.end());
}

std::string comparison(const plan::Choice& choice) {
  Table table({"", "plan", "step", "samples/s", "bubble", "most memory", ""});
  const double best_s = choice.candidates[0].prediction.step_s;
  const auto add = [&](const char* what, int index) {
    if (index < 0) return;
    const Candidate& candidate = choice.candidates[index];
    std::string verdict = index == 0 ? "" : fmt::format("{:.2f}x the time", candidate.prediction.step_s / best_s);
    if (!candidate.fits()) verdict = "does not fit: " + candidate.prediction.refusal;
    table.add({what, plan::to_text(candidate), human_duration(candidate.prediction.step_s),
               human_number(candidate.prediction.samples_per_s), human_percent(candidate.prediction.bubble_share),
               bytes(most_bytes(candidate)), verdict});
  };
  add("chosen", 0);
  add("runner-up", choice.runner_up);
  add("data parallel", choice.data_parallel);
  add("straight pipeline", choice.straight_pipeline);
  return table.str();
}

std::map<std::pair<int, int>, double> bytes_by_link(const plan::Prediction& prediction) {
  std::map<std::pair<int, int>, double> sum;
  for (const plan::LinkLoad& link : prediction.links) sum[{link.from, link.to}] += link.bytes;
  return sum;
}

std::string link_lines(const Candidate& best) {
  const auto links = bytes_by_link(best.prediction);
  if (links.empty()) return {};
  std::vector<std::string> parts;
  double all = 0;
  for (const auto& [ends, sent] : links) {
    all += sent;
    const auto &from = best.plan.devices[ends.first], &to = best.plan.devices[ends.second];
    if (parts.size() == kMostLinks) continue;
    parts.push_back(fmt::format("{}:{} to {}:{} {}", from.node, from.device, to.node, to.device, bytes(sent)));
  }
  const std::string more = links.size() > kMostLinks ? fmt::format(", {} more", links.size() - kMostLinks) : "";
  return fmt::format("sent in a step: {} ({}{})\n", bytes(all), fmt::join(parts, ", "), more);
}

schedule::Timeline timeline_of(const Candidate& candidate) {
  return simulate(candidate.prediction.shape, candidate.prediction.costs);
}

// What a plan sets of a job, by sections.
void add_settings(const job::Parallel& parallel, ordered_json& json) {
  job::Job job;
  job.parallel = parallel;
  for (const job::Field& field : job::fields()) {
    const std::string section = field.section();
    if (section == "parallel" || section == "memory") json[section][field.leaf()] = field.write(job);
  }
}

ordered_json candidate_json(const Candidate& candidate) {
  ordered_json json{{"plan", plan::to_text(candidate)},
                    {"step_ms", candidate.prediction.step_s * 1e3},
                    {"samples_per_s", candidate.prediction.samples_per_s},
                    {"bubble_share", candidate.prediction.bubble_share},
                    {"memory_bytes", std::llround(most_bytes(candidate))},
                    {"fits", candidate.fits()}};
  add_settings(candidate.parallel, json);
  return json;
}

}  // namespace

std::string plan_tables(const PlannedJob& planned) {
  const Candidate& best = planned.choice.candidates[0];
  std::string text =
      fmt::format("{}: {}, batch {}, on {} ({})\n\n", planned.job.name, planned.job.model.name, planned.job.batch,
                  planned.cluster.name, counted(static_cast<int64_t>(planned.cluster.devices.size()), "device"));
  text += stage_table(planned);
  text += "\n" + comparison(planned.choice);
  if (best.plan.pipeline.num_workers > 1) {
    text += "\n" + draw(best.prediction.shape, timeline_of(best), kPictureColumns);
    text += "\n" + link_lines(best);
  }
  return text;
}

std::string explain_choice(const plan::Choice& choice) {
  Table table({"", "plan", "step", "samples/s", "bubble", "most memory", "why not"});
  const double best_s = choice.candidates[0].prediction.step_s;
  for (size_t i = 0; i < choice.candidates.size(); ++i) {
    const Candidate& candidate = choice.candidates[i];
    const double slower = candidate.prediction.step_s / best_s - 1;
    std::string why = i == 0 ? "chosen" : fmt::format("{:.1f}% slower", 100 * slower);
    if (i > 0 && slower < 0.0005) why = "as fast";
    if (i > 0 && slower < -0.0005)
      why = fmt::format("{:.1f}% faster, too little to be less simple or send more", -100 * slower);
    if (!candidate.fits()) why = candidate.prediction.refusal;
    table.add({fmt::format("{}", i), plan::to_text(candidate), human_duration(candidate.prediction.step_s),
               human_number(candidate.prediction.samples_per_s), human_percent(candidate.prediction.bubble_share),
               bytes(most_bytes(candidate)), why});
  }
  return table.str();
}

ordered_json plan_json(const PlannedJob& planned) {
  const Candidate& best = planned.choice.candidates[0];
  const plan::Plan& plan = best.plan;
  ordered_json json{{"job", planned.job.name},
                    {"model", planned.job.model.name},
                    {"batch", planned.job.batch},
                    {"cluster", planned.cluster.name}};
  add_settings(best.parallel, json);
  json["predicted"] = candidate_json(best);
  json["stages"] = ordered_json::array();
  for (int s = 0; s < plan.pipeline.num_stages(); ++s) {
    const plan::StagePrediction& stage = best.prediction.stages[s];
    const graph::StageSlice slice = plan.slice(s);
    auto layers = ordered_json::array(), devices = ordered_json::array(), rows = ordered_json::array();
    for (graph::OpId op = slice.begin(); op < slice.end(planned.graph); ++op)
      layers.push_back(planned.graph.ops[op].name);
    for (int r = 0; r < plan.pipeline.num_replicas(s); ++r) {
      const job::DeviceId& id = plan.devices[plan.pipeline.stages[s][r]];
      devices.push_back(fmt::format("{}:{}", id.node, id.device));
      rows.push_back(plan.rows(s, r).size());
    }
    const plan::StageMemory& m = stage.memory;
    json["stages"].push_back({{"layers", layers},
                              {"devices", devices},
                              {"rows", rows},
                              {"step_ms", stage.compute_s * 1e3},
                              {"memory_bytes", std::llround(m.total())},
                              {"memory",
                               {{"weights", std::llround(m.weights)},
                                {"gradients", std::llround(m.gradients)},
                                {"optimizer", std::llround(m.optimizer)},
                                {"activations", std::llround(m.activations)},
                                {"buffers", std::llround(m.buffers)},
                                {"workspace", std::llround(m.workspace)},
                                {"versions", m.versions},
                                {"in_flight", m.in_flight}}}});
  }
  json["workers"] = ordered_json::array();
  for (int w = 0; w < plan.pipeline.num_workers; ++w) {
    json["workers"].push_back({{"device", fmt::format("{}:{}", plan.devices[w].node, plan.devices[w].device)},
                               {"memory_bytes", std::llround(best.prediction.worker_bytes[w])}});
  }
  json["links"] = ordered_json::array();
  for (const auto& [ends, sent] : bytes_by_link(best.prediction)) {
    json["links"].push_back({{"from", ends.first}, {"to", ends.second}, {"bytes", std::llround(sent)}});
  }
  const auto baseline = [&](int index) {
    return index < 0 ? ordered_json(nullptr) : candidate_json(planned.choice.candidates[index]);
  };
  json["baselines"] = {{"data_parallel", baseline(planned.choice.data_parallel)},
                       {"straight_pipeline", baseline(planned.choice.straight_pipeline)},
                       {"runner_up", baseline(planned.choice.runner_up)}};
  return json;
}

}  // namespace millrace::report
