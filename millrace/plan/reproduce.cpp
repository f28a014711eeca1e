#include "millrace/plan/reproduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>

#include "millrace/base/error.h"
#include "millrace/graph/fuse.h"
#include "millrace/model/model.h"
#include "millrace/plan/project_elastic.h"
#include "millrace/plan/roofline.h"

namespace millrace::plan {
namespace {

using job::Mode;

constexpr double kMiB = 1 << 20;
constexpr double kFarOff = 0.15;

struct Gpu {
  const char* name;
  int64_t memory_bytes;
  DeviceRates rates;       // of its data sheet
  DeviceRates half_rates;  // likewise, in half precision on tensor cores
};

// Peak rates of the data sheets; the single-device rows say which part of them is reached.
const Gpu& gpu_of(const std::string& name) {
  static const Gpu kTitanV{"TITAN V", int64_t{12} << 30, {14.9e12, 653e9, 4, 0}, {110e12, 653e9, 2, 0}};
  static const Gpu kV100{"V100-SXM2-16GB", int64_t{16} << 30, {15.7e12, 900e9, 4, 0}, {125e12, 900e9, 2, 0}};
  // PipeTransformer's paper names a Quadro RTX 5000.
  static const Gpu kQuadro{"16 GB GPU", int64_t{16} << 30, {11.2e12, 448e9, 4, 0}, {89.2e12, 448e9, 2, 0}};
  if (name == kTitanV.name) return kTitanV;
  if (name == kQuadro.name) return kQuadro;
  if (name == kV100.name) return kV100;
  fail_input("the GPU is only known as \"{}\"", name);
}

// What a sum over replicas gets out of the wires, in each direction: one figure per kind of cluster.
struct LinkFigure {
  double bytes_per_s;
  const char* from;
};
constexpr LinkFigure kTitanNode{3.9e9, "PCIe tree without peer links"};
constexpr LinkFigure kTitanNodes{3.9e9, "the node's figure: not told apart from it"};
constexpr LinkFigure kV100Node{25e9, "one NVLink 2 a pair"};
constexpr LinkFigure kV100Nodes{1.1e9, "InfiniBand 100 Gb/s shared by eight GPUs"};
constexpr LinkFigure kQuadroNode{15.754e9, "PCIe 3.0 x16, as PipeTransformer's paper gives it"};
constexpr LinkFigure kQuadroNodes{5e9, "InfiniBand, as PipeTransformer's paper gives it"};

struct Links {
  LinkFigure in_node, between_nodes;
};
Links links_of(const std::string& gpu) {
  if (gpu == "TITAN V") return {kTitanNode, kTitanNodes};
  if (gpu == "16 GB GPU") return {kQuadroNode, kQuadroNodes};
  return {kV100Node, kV100Nodes};
}

// What one device does is known from rows of one device. Of PipeTransformer there are none. Data parallelism bounds
// what a GPU does from below: the row with most for each is taken, as if its sums took no time of their own.
bool calibrates(const Published& row) {
  return row.samples_per_s > 0 && (row.gpus() == 1 || row.id == "pt_vit_ddp_4gpu");
}

// Convolutions are what libraries differ in, by algorithm and by shape; matrix products reach most of the peak.
constexpr double kProductShare = 0.85;

bool is_transformer(const profile::Profile& profile) {
  return std::any_of(profile.operators.begin(), profile.operators.end(),
                     [](const profile::Operator& op) { return op.kind == "attention"; });
}
// What the calibrated share is of: a transformer's arithmetic is products.
bool is_scaled(const profile::Operator& op, bool in_transformer) {
  return op.kind == "conv2d" || (in_transformer && (op.kind == "linear" || op.kind == "attention"));
}

profile::Profile with_scale(profile::Profile profile, double scaled_factor) {
  profile.step_s = 0;
  const bool in_transformer = is_transformer(profile);
  for (profile::Operator& op : profile.operators) {
    const double factor = is_scaled(op, in_transformer) ? scaled_factor : op.kind == "linear" ? 1 / kProductShare : 1;
    for (profile::Seconds* pass : {&op.forward, &op.input_grad, &op.weight_grad}) pass->median *= factor;
    profile.step_s += op.seconds();
  }
  return profile;
}

profile::Profile roofline_of(const Published& experiment, int64_t rows) {
  const Gpu& gpu = gpu_of(experiment.gpu);
  const job::Job job = job_of(experiment);
  return roofline_profile(graph::fuse(model::build(job.model, rows, 0)), experiment.half ? gpu.half_rates : gpu.rates);
}

// How much longer than their roofline a model's convolutions (a transformer's products) take on a GPU.
class Scales {
 public:
  Scales() {
    for (const Published& row : published_experiments()) {
      if (!calibrates(row)) continue;
      const double measured_s = row.batch_per_gpu * row.gpus() / row.samples_per_s;
      const profile::Profile roofline = with_scale(roofline_of(row, row.batch_per_gpu), 1);
      const bool in_transformer = is_transformer(roofline);
      double scaled_s = 0;
      for (const profile::Operator& op : roofline.operators)
        scaled_s += is_scaled(op, in_transformer) ? op.seconds() : 0;
      const double others_s = roofline.step_s - scaled_s;
      of_model_[{row.gpu, row.half, row.model}] = (measured_s - others_s) / scaled_s;
    }
  }

  // A model without such a row on this GPU is taken to reach the same share elsewhere.
  double factor(const Published& row) const {
    const auto own = of_model_.find({row.gpu, row.half, row.model});
    if (own != of_model_.end()) return own->second;
    for (const auto& [key, factor] : of_model_) {
      if (std::get<2>(key) == row.model) return factor;
    }
    fail_input("no single-device row of {}", row.model);
  }
  bool has(const Published& row) const { return of_model_.contains({row.gpu, row.half, row.model}); }

  std::vector<Calibration> told() const {
    std::vector<Calibration> all;
    for (const auto& [key, factor] : of_model_) {
      const auto& [gpu, half, model] = key;
      const bool in_transformer = model == "vit_b_16";
      all.push_back({fmt::format("{} on {}, {}: {}' share of the roofline", model, gpu, half ? "fp16" : "fp32",
                                 in_transformer ? "products" : "convolutions"),
                     1 / factor, in_transformer ? "pt_vit_ddp_4gpu, its sums left out" : "the single-device row"});
    }
    return all;
  }

 private:
  std::map<std::tuple<std::string, bool, std::string>, double> of_model_;
};

bool may_be_stale(const Published& experiment) {
  return experiment.mode == Mode::PipeDream || experiment.mode == Mode::Ssp;
}

std::string likely_cause(const Published& row, const Scales& scales) {
  if (row.system == "PipeDream") {
    return "PipeDream ran on an early PyTorch over Gloo; its single-device speed was not published, OneFlow's is taken";
  }
  if (row.system == "PipeTransformer") {
    return "its rows do not agree on what a GPU does: 43 samples/s in pt_vit_ddp_3gpu, 52 in pt_vit_ddp_4gpu, which is "
           "taken, and 74 in pt_vit_pipe_3gpu by its own bubble of 2 in 6";
  }
  if (!scales.has(row))
    return "no single-device row of this model on this GPU: its share of the roofline on another is taken";
  if (row.mode == Mode::Ssp && row.static_scheduling) {
    return "published as fast as without the switch: minibatches did not overlap here, why is not known; not "
           "overlapping is what the row with _false predicts";
  }
  return "";
}

// Without its switch OneFlow kept one buffer of each kind: a minibatch began when the one before was done. With it,
// actors ran what was ready: the better of both orders is taken, with forwards ahead or without.
Prediction predict_as_it_ran(const Published& row, job::Job job, const graph::Graph& graph,
                             const std::vector<profile::Profile>& profiles, const Cluster& cluster) {
  const auto num_devices = static_cast<int>(cluster.devices.size());
  Plan plan = make_plan(job, graph, num_devices);
  if (row.mode != Mode::Ssp) return predict(job, plan, profiles, cluster);
  const Prediction ahead = predict(job, plan, profiles, cluster);
  plan.pipeline.ahead.assign(plan.pipeline.stages.size(), 0);
  if (!row.static_scheduling) plan.pipeline.statistics.assign(plan.pipeline.stages.size(), true);
  const Prediction in_turn = predict(job, plan, profiles, cluster);
  return !row.static_scheduling || in_turn.step_s < ahead.step_s ? in_turn : ahead;
}

std::vector<profile::Profile> profiles_of(const Published& row, const Scales& scales) {
  std::vector<profile::Profile> profiles;
  for (int64_t rows : {int64_t{row.batch_per_gpu}, int64_t{row.batch_per_gpu} * row.gpus()}) {
    if (!profiles.empty() && profiles.back().rows == rows) continue;
    profiles.push_back(with_scale(roofline_of(row, rows), scales.factor(row)));
  }
  return profiles;
}

Reproduced reproduce_row(const Published& row, const Scales& scales, bool with_choice) {
  Reproduced made;
  made.published = row;
  made.calibrates = calibrates(row);
  try {
    const job::Job job = job_of(row);
    const graph::Graph graph = graph::fuse(model::build(job.model, 1, 0));
    const Cluster cluster = published_cluster(row);
    const std::vector<profile::Profile> profiles = profiles_of(row, scales);
    const Prediction prediction = predict_as_it_ran(row, job, graph, profiles, cluster);
    made.samples_per_s = prediction.samples_per_s;
    made.memory_mib = *std::max_element(prediction.worker_bytes.begin(), prediction.worker_bytes.end()) / kMiB;
    if (made.ratio() && std::abs(*made.ratio() - 1) > kFarOff) made.note = likely_cause(row, scales);
    if (row.gpus() == 1 || !with_choice) return made;
    job::Job free = job;
    free.parallel = {};
    std::vector<Mode> modes = synchronous_modes();
    if (may_be_stale(row)) modes.insert(modes.end(), {Mode::PipeDream, Mode::Ssp});
    const Candidate best = choose(free, profiles, cluster, modes).candidates[0];
    made.chosen = to_text(best);
    made.gain = best.prediction.samples_per_s / prediction.samples_per_s;
  } catch (const std::invalid_argument& error) {
    made.note = error.what();
  }
  return made;
}

}  // namespace

Cluster published_cluster(const Published& experiment) {
  const Gpu& gpu = gpu_of(experiment.gpu);
  Cluster cluster;
  cluster.name = fmt::format("{} {}x{}", gpu.name, experiment.gpus_per_node, experiment.nodes);
  for (int node = 0; node < experiment.nodes; ++node) {
    for (int device = 0; device < experiment.gpus_per_node; ++device) {
      cluster.devices.push_back({{node, device}, gpu.name, gpu.memory_bytes, 1});
    }
  }
  const Links links = links_of(experiment.gpu);
  if (experiment.gpus_per_node > 1) {
    cluster.levels.push_back({"node", experiment.gpus_per_node, links.in_node.bytes_per_s, 10e-6, false});
  }
  if (experiment.nodes > 1) {
    cluster.levels.push_back({"network", experiment.nodes, links.between_nodes.bytes_per_s, 20e-6, false});
  }
  return cluster;
}

Reproduction reproduce(bool with_choices) {
  const Scales scales;
  Reproduction reproduction;
  reproduction.calibration = scales.told();
  for (const auto& [cluster, figure] :
       {std::pair("TITAN V 8x1: GB/s of a sum", kTitanNode), std::pair("TITAN V 8x2: GB/s of a sum", kTitanNodes),
        std::pair("V100 8x1: GB/s of a sum", kV100Node), std::pair("V100 8x2 and 8x4: GB/s of a sum", kV100Nodes),
        std::pair("16 GB GPU: GB/s within a node", kQuadroNode),
        std::pair("16 GB GPU: GB/s between nodes", kQuadroNodes)}) {
    reproduction.calibration.push_back({cluster, figure.bytes_per_s * 1e-9, figure.from});
  }
  for (const Published& row : published_experiments()) {
    reproduction.rows.push_back(reproduce_row(row, scales, with_choices));
    if (row.id != "pt_vit_nofreeze" || !with_choices) continue;
    for (const PublishedGain& gain : published_elastic_gains()) {
      reproduction.elastic.push_back(project_elastic(row, gain, profiles_of(row, scales), published_cluster(row)));
    }
  }
  return reproduction;
}

}  // namespace millrace::plan
