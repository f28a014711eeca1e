// millrace reproduce: every published experiment beside what is predicted for it.
#include "millrace/plan/reproduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "millrace/report/run_directory.h"
#include "millrace/report/table.h"
#include "millrace/report/units.h"

namespace millrace::cli {
namespace {

using nlohmann::ordered_json;
using plan::Reproduced;

std::string number_or_none(std::optional<double> value) {
  return value && *value > 0 ? report::human_number(*value) : "-";
}

void print_elastic(const std::vector<plan::ElasticProjection>& projections) {
  if (projections.empty()) return;
  report::Table gains({"layers that freeze, alpha", "published", "simulated", "ratio"});
  for (const plan::ElasticProjection& one : projections) {
    gains.add({one.published.alpha_text, fmt::format("{:.2f}x", one.published.gain), fmt::format("{:.2f}x", one.gain()),
               fmt::format("{:.2f}", one.gain() / one.published.gain)});
  }
  fmt::print(
      "\nPipeTransformer's ten epochs on 2 x 8 GPUs against its static pipeline (pt_vit_all, pt_vit_nofreeze), "
      "simulated here\nwith freezing as fast as the rule allows, plans chosen anew and the cache on:\n{}",
      gains.str());
  const auto published = std::find_if(projections.begin(), projections.end(),
                                      [](const auto& one) { return one.published.alpha == 1. / 3; });
  report::Table epochs({"epoch", "frozen", "kept", "samples/s", "plan at alpha 1/3"});
  for (size_t i = 0; i < published->epochs.size(); ++i) {
    const plan::ProjectedEpoch& epoch = published->epochs[i];
    epochs.add({fmt::format("{}", i + 1), fmt::format("{}", epoch.frozen), fmt::format("{}", epoch.kept),
                report::human_number(epoch.samples_per_s), epoch.plan});
  }
  fmt::print("{}", epochs.str());
}

void print_reproduction(const plan::Reproduction& reproduction) {
  report::Table calibration({"calibrated", "value", "from"});
  for (const plan::Calibration& figure : reproduction.calibration) {
    calibration.add({figure.what, report::human_number(figure.value), figure.from});
  }
  report::Table table(
      {"experiment", "samples/s", "predicted", "ratio", "MiB", "predicted", "the planner's choice", "gain"});
  for (const Reproduced& row : reproduction.rows) {
    const std::optional<double> ratio = row.ratio();
    table.add({row.published.id, number_or_none(row.published.samples_per_s), number_or_none(row.samples_per_s),
               ratio ? fmt::format("{:.2f}{}", *ratio, row.calibrates ? " *" : "") : "-",
               number_or_none(row.published.memory_mib), number_or_none(row.memory_mib),
               row.chosen.empty() ? "-" : row.chosen, row.gain > 0 ? fmt::format("{:.2f}x", row.gain) : "-"});
  }
  fmt::print("{}\n{}* calibrated by this row: met by construction. Every other row is a prediction.\n",
             calibration.str(), table.str());
  print_elastic(reproduction.elastic);
  bool first = true;
  for (const Reproduced& row : reproduction.rows) {
    if (row.note.empty()) continue;
    fmt::print("{}{}: {}\n", first ? "\n" : "", row.published.id, row.note);
    first = false;
  }
}

ordered_json to_json(const plan::Reproduction& reproduction) {
  const auto or_null = [](std::optional<double> value) {
    return value && *value > 0 ? ordered_json(*value) : ordered_json(nullptr);
  };
  ordered_json gains = ordered_json::array();
  for (const plan::ElasticProjection& one : reproduction.elastic) {
    gains.push_back({{"alpha", one.published.alpha}, {"published", one.published.gain}, {"simulated", one.gain()}});
  }
  ordered_json rows = ordered_json::array();
  for (const Reproduced& row : reproduction.rows) {
    rows.push_back({{"id", row.published.id},
                    {"published_samples_per_s", or_null(row.published.samples_per_s)},
                    {"predicted_samples_per_s", or_null(row.samples_per_s)},
                    {"ratio", or_null(row.ratio())},
                    {"calibrates", row.calibrates},
                    {"published_memory_mib", or_null(row.published.memory_mib)},
                    {"predicted_memory_mib", or_null(row.memory_mib)},
                    {"chosen", row.chosen.empty() ? ordered_json(nullptr) : ordered_json(row.chosen)},
                    {"gain", or_null(row.gain)},
                    {"note", row.note}});
    if (row.published.id == "pt_vit_all") rows.back()["elastic_gain"] = gains;
  }
  return rows;
}

}  // namespace

void declare_reproduce(CLI::App& app, Action& action) {
  auto json = std::make_shared<std::string>();
  auto no_plans = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("reproduce", "Predict every published experiment, beside its figures");
  command->add_option("--json", *json, "Also write the rows here")->type_name("FILE")->check(not_empty("rows.json"));
  command->add_flag("--no-plans", *no_plans, "Leave out what the planner would choose, which takes most of the time");
  command->footer(
      "GPUs are rooflines scaled to the single-device rows; each cluster has one link figure, named first.");
  command->callback([json, no_plans, &action] {
    action = [json, no_plans] {
      if (!json->empty()) report::check_file(*json, "--json");
      const plan::Reproduction reproduction = plan::reproduce(!*no_plans);
      if (!json->empty()) report::write_file(*json, to_json(reproduction).dump(2) + "\n");
      print_reproduction(reproduction);
    };
  });
}

}  // namespace millrace::cli
