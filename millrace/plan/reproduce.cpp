#include "millrace/plan/reproduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>

#include "millrace/base/error.h"
#include "millrace/graph/fuse.h"
#include "millrace/model/model.h"
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
  if (name == kTitanV.name) return kTitanV;
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

bool is_titan(const Published& experiment) { return experiment.gpu == "TITAN V"; }

// Convolutions are what libraries differ in, by algorithm and by shape; matrix products reach most of the peak.
constexpr double kProductShare = 0.85;

bool is_convolution(const profile::Operator& op) { return op.kind == "conv2d"; }

profile::Profile with_scale(profile::Profile profile, double convolution_factor) {
  profile.step_s = 0;
  for (profile::Operator& op : profile.operators) {
    const double factor = is_convolution(op) ? convolution_factor : op.kind == "linear" ? 1 / kProductShare : 1;
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

// How much longer than their roofline a model's convolutions take on a GPU, by the single-device rows.
class Scales {
 public:
  Scales() {
    for (const Published& row : published_experiments()) {
      if (row.gpus() != 1 || row.samples_per_s <= 0) continue;
      const double measured_s = row.batch_per_gpu / row.samples_per_s;
      const profile::Profile roofline = with_scale(roofline_of(row, row.batch_per_gpu), 1);
      double convolutions_s = 0;
      for (const profile::Operator& op : roofline.operators) convolutions_s += is_convolution(op) ? op.seconds() : 0;
      const double others_s = roofline.step_s - convolutions_s;
      of_model_[{row.gpu, row.half, row.model}] = (measured_s - others_s) / convolutions_s;
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
      all.push_back(
          {fmt::format("{} on {}, {}: convolutions' share of the roofline", model, gpu, half ? "fp16" : "fp32"),
           1 / factor, "the single-device row"});
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

Reproduced reproduce_row(const Published& row, const Scales& scales, bool with_choice) {
  Reproduced made;
  made.published = row;
  made.calibrates = row.gpus() == 1 && row.samples_per_s > 0;
  try {
    const job::Job job = job_of(row);
    const graph::Graph graph = graph::fuse(model::build(job.model, 1, 0));
    const Cluster cluster = published_cluster(row);
    std::vector<profile::Profile> profiles;
    for (int64_t rows : {int64_t{row.batch_per_gpu}, int64_t{row.batch_per_gpu} * row.gpus()}) {
      if (!profiles.empty() && profiles.back().rows == rows) continue;
      profiles.push_back(with_scale(roofline_of(row, rows), scales.factor(row)));
    }
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
  const bool titan = is_titan(experiment);
  if (experiment.gpus_per_node > 1) {
    const double rate = (titan ? kTitanNode : kV100Node).bytes_per_s;
    cluster.levels.push_back({"node", experiment.gpus_per_node, rate, 10e-6, false});
  }
  if (experiment.nodes > 1) {
    const double rate = (titan ? kTitanNodes : kV100Nodes).bytes_per_s;
    cluster.levels.push_back({"network", experiment.nodes, rate, 20e-6, false});
  }
  return cluster;
}

Reproduction reproduce(bool with_choices) {
  const Scales scales;
  Reproduction reproduction;
  reproduction.calibration = scales.told();
  for (const auto& [cluster, figure] :
       {std::pair("TITAN V 8x1: GB/s of a sum", kTitanNode), std::pair("TITAN V 8x2: GB/s of a sum", kTitanNodes),
        std::pair("V100 8x1: GB/s of a sum", kV100Node), std::pair("V100 8x2 and 8x4: GB/s of a sum", kV100Nodes)}) {
    reproduction.calibration.push_back({cluster, figure.bytes_per_s * 1e-9, figure.from});
  }
  for (const Published& row : published_experiments())
    reproduction.rows.push_back(reproduce_row(row, scales, with_choices));
  return reproduction;
}

}  // namespace millrace::plan
