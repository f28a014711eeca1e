// millrace checkpoint: what is in a checkpoint, whether it is whole, how two differ, and its parameters for others.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/export_params.h"
#include "millrace/base/error.h"
#include "millrace/job/fields.h"
#include "millrace/job/reader.h"
#include "millrace/model/model.h"
#include "millrace/report/run_directory.h"
#include "millrace/report/table.h"
#include "millrace/report/units.h"
#include "millrace/state/checkpoint_store.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;
using report::human_bytes;
using report::human_count;
using report::Table;
using state::Manifest;
using state::Shard;
using state::ShardKind;

struct Arguments {
  std::string path, other, out, json;
  bool fallback = false;
};

const char* name_of(ShardKind kind) {
  switch (kind) {
    case ShardKind::Weights: return "weights";
    case ShardKind::Velocity: return "velocity";
    case ShardKind::SecondMoment: return "second_moment";
    case ShardKind::Watched: return "watched";
    case ShardKind::Older: return "older weights";
  }
  return "?";
}

bool is_checkpoint(const fs::path& path) { return fs::exists(path / "manifest.json"); }

// A checkpoint itself, or all of a run.
std::vector<fs::path> checkpoints_at(const fs::path& path) {
  if (is_checkpoint(path)) return {path};
  const fs::path folder = fs::exists(path / "checkpoints") ? path / "checkpoints" : path;
  std::vector<fs::path> all = state::CheckpointStore(folder).all();
  if (all.empty()) {
    fail_input("{}: there is no checkpoint; write a run's directory, or one of its checkpoints", path.string());
  }
  return all;
}

state::Chosen chosen_at(const Arguments& arguments, const std::string& path) {
  return state::choose_checkpoint(path, arguments.fallback,
                                  [](const std::string& damage) { fmt::print(stderr, "{}\n", damage); });
}

int64_t bytes_of(const Manifest& manifest) {
  int64_t bytes = 0;
  for (const Shard& shard : manifest.shards) bytes += shard.bytes;
  return bytes;
}

nlohmann::ordered_json to_json(const fs::path& path, const Manifest& manifest) {
  nlohmann::ordered_json json{{"path", path.string()},
                              {"step", manifest.step},
                              {"epoch", manifest.epoch},
                              {"samples", manifest.samples},
                              {"train_samples", manifest.train_samples},
                              {"plan", manifest.plan},
                              {"loss_scale", manifest.loss_scale},
                              {"figures", manifest.figures},
                              {"bytes", bytes_of(manifest)},
                              {"shards", nlohmann::ordered_json::array()}};
  for (const Shard& shard : manifest.shards) {
    json["shards"].push_back({{"file", shard.file},
                              {"kind", name_of(shard.kind)},
                              {"age", shard.age},
                              {"updates", shard.updates},
                              {"bytes", shard.bytes},
                              {"xxh3", shard.xxh3}});
  }
  return json;
}

void show_one(const fs::path& path, const Manifest& manifest) {
  Table table;
  table.add({"checkpoint", path.string()});
  table.add({"step", fmt::format("{}, epoch {:.4g}, {} samples", human_count(manifest.step), manifest.epoch,
                                 human_count(manifest.samples))});
  table.add({"data", fmt::format("{} samples an epoch", human_count(manifest.train_samples))});
  table.add({"saved by", manifest.plan});
  if (!manifest.loss_scale.empty()) {
    table.add({"loss scale", fmt::format("{}, {} good steps, {} left out", manifest.loss_scale[0],
                                         manifest.loss_scale[1], manifest.loss_scale[2])});
  }
  for (const auto& [name, value] : manifest.figures) table.add({"test " + name, fmt::format("{:.5g}", value)});
  table.add({"size", fmt::format("{} in {} files", human_bytes(bytes_of(manifest)), manifest.shards.size())});
  fmt::print("{}\n", table.str());
  Table shards({"file", "holds", "updates", "size", "xxh3"});
  for (const Shard& shard : manifest.shards) {
    const std::string holds =
        shard.age == 0 ? name_of(shard.kind) : fmt::format("weights {} before", report::counted(shard.age, "update"));
    shards.add({shard.file, holds, human_count(shard.updates), human_bytes(shard.bytes), shard.xxh3});
  }
  fmt::print("{}", shards.str());
}

void inspect(const Arguments& arguments) {
  const std::vector<fs::path> paths = checkpoints_at(arguments.path);
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  Table table({"checkpoint", "step", "epoch", "size", "test loss", "test top-1"});
  for (const fs::path& path : paths) {
    const Manifest manifest = state::read_manifest(path);
    json.push_back(to_json(path, manifest));
    if (paths.size() == 1) show_one(path, manifest);
    const auto figure = [&](const char* name) {
      const auto found = manifest.figures.find(name);
      return found == manifest.figures.end() ? std::string("-") : fmt::format("{:.5g}", found->second);
    };
    table.add({path.filename().string(), human_count(manifest.step), fmt::format("{:.4g}", manifest.epoch),
               human_bytes(bytes_of(manifest)), figure("loss"), figure("top1")});
  }
  if (paths.size() > 1) fmt::print("{}", table.str());
  if (!arguments.json.empty()) report::write_file(arguments.json, json.dump(2) + "\n");
}

int verify(const Arguments& arguments) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  bool all_good = true;
  for (const fs::path& path : checkpoints_at(arguments.path)) {
    const std::vector<state::Damage> damages = state::verify(path);
    all_good &= damages.empty();
    nlohmann::ordered_json found = nlohmann::ordered_json::array();
    for (const state::Damage& damage : damages) {
      fmt::print("{}: {}: {}\n", path.string(), damage.file, damage.what);
      found.push_back({{"file", damage.file}, {"what", damage.what}});
    }
    if (damages.empty()) fmt::print("{}: good\n", path.string());
    json.push_back({{"path", path.string()}, {"good", damages.empty()}, {"damages", found}});
  }
  if (!arguments.json.empty()) report::write_file(arguments.json, json.dump(2) + "\n");
  return all_good ? 0 : 1;
}

void export_checkpoint(const Arguments& arguments) {
  const auto [directory, manifest] = chosen_at(arguments, arguments.path);
  const job::Job job =
      job::parse_job(state::read_job(directory, manifest), (directory / "job.yaml").string(), {"model.init="});
  export_params(model::build(job.model, 1, 0), job.model.name, state::read_state(directory, manifest), arguments.out);
}

// How two sets of tensors differ, by name.
class Differences {
 public:
  void add(const std::string& what, const std::map<std::string, state::Tensor>& a,
           const std::map<std::string, state::Tensor>& b) {
    size_t equal = 0, different = 0;
    for (const auto& [name, tensor] : a) {
      const auto found = b.find(name);
      if (found == b.end()) {
        rows_.push_back({what, name, "only in the first", "", ""});
      } else if (tensor.shape != found->second.shape) {
        rows_.push_back({what, name, fmt::format("{} and {}", tensor.shape.str(), found->second.shape.str()), "", ""});
      } else if (same_bits(tensor, found->second)) {
        ++equal;
        continue;
      } else {
        add_values(what, name, tensor, found->second);
      }
      ++different;
    }
    for (const auto& [name, tensor] : b) {
      if (a.contains(name)) continue;
      rows_.push_back({what, name, "only in the second", "", ""});
      ++different;
    }
    if (equal + different > 0)
      summary_.add({what, human_count(static_cast<int64_t>(equal)), human_count(static_cast<int64_t>(different))});
    any_ |= different > 0;
  }

  bool any() const { return any_; }
  std::string str() const {
    std::string text = summary_.str();
    if (rows_.empty()) return text;
    Table table({"of", "tensor", "numbers that differ", "largest difference", "relative to its norm"});
    constexpr size_t kMost = 40;
    for (size_t i = 0; i < std::min(rows_.size(), kMost); ++i) table.add(rows_[i]);
    text += "\n" + table.str();
    if (rows_.size() > kMost) text += fmt::format("and {} more\n", rows_.size() - kMost);
    return text;
  }

 private:
  static bool same_bits(const state::Tensor& a, const state::Tensor& b) {
    return a.data.empty() || std::memcmp(a.data.data(), b.data.data(), a.data.size() * sizeof(float)) == 0;
  }

  void add_values(const std::string& what, const std::string& name, const state::Tensor& a, const state::Tensor& b) {
    double largest = 0, squares = 0, norm = 0;
    int64_t count = 0;
    for (size_t i = 0; i < a.data.size(); ++i) {
      if (std::memcmp(&a.data[i], &b.data[i], sizeof(float)) == 0) continue;
      const double difference = std::abs(double{a.data[i]} - b.data[i]);
      ++count;
      largest = std::isnan(difference) ? difference : std::max(largest, difference);
      squares += difference * difference;
    }
    for (const float value : a.data) norm += double{value} * value;
    rows_.push_back(
        {what, name, fmt::format("{} of {}", human_count(count), human_count(static_cast<int64_t>(a.data.size()))),
         fmt::format("{:.3g}", largest), fmt::format("{:.3g}", std::sqrt(squares / std::max(norm, 1e-300)))});
  }

  Table summary_{{"of", "equal", "different"}};
  std::vector<std::vector<std::string>> rows_;
  bool any_ = false;
};

int diff(const Arguments& arguments) {
  const state::Chosen a = chosen_at(arguments, arguments.path), b = chosen_at(arguments, arguments.other);
  const job::Job job_a = job::parse_job(state::read_job(a.directory, a.manifest), arguments.path, {"model.init="});
  const job::Job job_b = job::parse_job(state::read_job(b.directory, b.manifest), arguments.other, {"model.init="});
  const state::State one = state::read_state(a.directory, a.manifest), two = state::read_state(b.directory, b.manifest);
  Table position({"", a.directory.filename().string(), b.directory.filename().string()});
  auto compare = [&](const std::string& what, const std::string& first, const std::string& second) {
    if (first == second) return false;
    position.add({what, first, second});
    return true;
  };
  bool differs = compare("step", human_count(one.step), human_count(two.step));
  differs |= compare("samples", human_count(one.samples), human_count(two.samples));
  bool jobs_differ = false;
  for (const job::Field& field : job::fields()) {
    jobs_differ |= compare(field.key, field.write(job_a), field.write(job_b));
  }
  if (differs || jobs_differ) fmt::print("{}\n", position.str());
  Differences differences;
  differences.add("weights", one.params, two.params);
  differences.add("velocity", one.velocity, two.velocity);
  differences.add("second moment", one.second_moment, two.second_moment);
  differences.add("watched gradient", one.watched, two.watched);
  for (size_t age = 0; age < std::max(one.older.size(), two.older.size()); ++age) {
    const std::map<std::string, state::Tensor> none;
    differences.add(fmt::format("weights {} before", report::counted(static_cast<int64_t>(age) + 1, "update")),
                    age < one.older.size() ? one.older[age] : none, age < two.older.size() ? two.older[age] : none);
  }
  fmt::print("{}", differences.str());
  return differs || differences.any() ? 1 : 0;
}

}  // namespace

void declare_checkpoint(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("checkpoint", "Look into checkpoints, verify, compare and export them");
  command->require_subcommand(1);
  auto add = [&](const char* name, const char* what, auto&& work) {
    auto arguments = std::make_shared<Arguments>();
    CLI::App* sub = command->add_subcommand(name, what);
    sub->add_option("PATH", arguments->path, "A run's directory, or one of its checkpoints")
        ->required()
        ->type_name("DIR")
        ->check(not_empty("runs/first"));
    sub->callback([arguments, work, &action] { action = [arguments, work] { return work(*arguments); }; });
    return std::pair(sub, arguments);
  };
  auto add_json = [](const auto& made) {
    made.first->add_option("--json", made.second->json, "Also write it here")
        ->type_name("FILE")
        ->check(not_empty("checkpoint.json"));
  };
  auto add_fallback = [](const auto& made) {
    made.first->add_flag("--fallback", made.second->fallback, "Of a run, pass over damaged checkpoints");
  };
  add_json(add("inspect", "What a checkpoint holds, or which ones a run has", inspect));
  add_json(add("verify", "Whether every byte is as it was written; exit code 1 if not", verify));
  const auto exported = add("export", "Write its parameters for PyTorch and Hugging Face", export_checkpoint);
  add_fallback(exported);
  exported.first
      ->add_option("-o,--out", exported.second->out, "model.safetensors, or a directory for it and its config.json")
      ->required()
      ->type_name("FILE|DIR")
      ->check(not_empty("exported"));
  const auto compared = add("diff", "How two checkpoints differ; exit code 1 if their states do", diff);
  compared.first->add_option("OTHER", compared.second->other, "What to compare it with")
      ->required()
      ->type_name("DIR")
      ->check(not_empty("runs/second"));
}

}  // namespace millrace::cli
