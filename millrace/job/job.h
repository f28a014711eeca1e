// A job: everything a user says about a run, as plain structs with defaults. The reader (reader.h) fills it
// from YAML and --set, and refuses what it does not know; nothing below this folder reads YAML. A new member
// becomes a key by one line in fields.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::job {

enum class Device { Cpu, Cuda, Reference };
enum class Precision { Fp32, Tf32, Fp16, Bf16 };

struct Model {
  std::string name = "resnet50";  // one of model::model_names()
  int classes = 1000;
  int image_size = 224;  // height and width of the input
  int channels = 3;
  double dropout = 0.5;   // alexnet and vgg16; 0 turns it off
  std::string init = {};  // a safetensors file with the model's parameters; empty: random from the seed
  bool operator==(const Model&) const = default;
};

enum class DataKind { Synthetic, Generated };
struct Data {
  DataKind kind = DataKind::Synthetic;
  int64_t train_samples = 0;  // generated: samples of one epoch; synthetic: 0 is one batch again and again
  int64_t test_samples = 0;   // generated: samples of the test split
  double noise = 0.5;         // generated: standard deviation of the pixel noise around a class pattern
  bool operator==(const Data&) const = default;
};

struct Optimizer {
  double lr = 0.1;
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 0.0;
  bool decoupled = false;  // decay weights by lr * weight_decay instead of adding it to the gradient (L2)
  bool decay_bias = true;  // false: biases are not decayed
  bool decay_norm = true;  // false: batch-norm scale and shift are not decayed
  bool operator==(const Optimizer&) const = default;
};

enum class Decay { Constant, Step, Cosine, Polynomial };
struct Schedule {
  Decay kind = Decay::Constant;
  double warmup_epochs = 0;        // linear from 0 to lr; may be fractional
  int64_t warmup_steps = 0;        // the same in steps; at most one of the two
  std::vector<double> milestones;  // step: epochs at which lr is multiplied by gamma
  double gamma = 0.1;
  double power = 1.0;   // polynomial
  double end_lr = 0.0;  // cosine and polynomial
  bool operator==(const Schedule&) const = default;
};

struct Loss {
  double label_smoothing = 0.0;
  bool operator==(const Loss&) const = default;
};

// fp16: gradients are computed of the loss times a factor that follows what they can bear.
struct LossScale {
  double start = 32768;
  double factor = 2;  // larger by it after `interval` good steps, smaller by it when a gradient is not finite
  int interval = 2000;
  double floor = 1;  // it does not fall below
  bool operator==(const LossScale&) const = default;
};

struct Eval {
  double every_epochs = 1;  // rounded to steps, at least one; 0: only at the end
  bool operator==(const Eval&) const = default;
};

// How a model is spread over workers. A worker is one device (node:device) that runs its own list of actions; a stage
// is a slice of the model; a replica is a copy of a stage on a worker.
enum class Mode {
  Dp,         // one stage, replicated
  GPipe,      // synchronous: all forwards of a step, then all backwards
  OneFOneB,   // synchronous: forwards and backwards in turn, then a flush
  PipeDream,  // asynchronous: no flush, forward and backward of a minibatch see one version of the weights
  Ssp,        // asynchronous: an exact delay per stage, a batch is split over a stage's replicas
  Auto,       // the planner chooses, before anything else is made
};
enum class Replicas {
  Split,       // each replica takes its share of the rows of every micro-batch
  RoundRobin,  // whole micro-batches go to the replicas in turn
};
enum class Balance { Operators, Flops, Time };
struct Parallel {
  Mode mode = Mode::Dp;
  std::string placement = {};      // "0:0-6.0:7": where each stage runs; empty: one stage on every worker there is
  std::string stage_weights = {};  // "10:1": share of each stage; empty: equal shares
  Balance balance = Balance::Operators;  // what the shares are shares of
  std::vector<std::string> cuts;         // instead of shares: the layer each further stage begins with
  std::string stage_file = {};  // instead of a placement: PipeDream's module_to_stage_map and stage_to_rank_map
  Replicas replicas = Replicas::Split;
  std::string shares = {};        // "5:3.1": rows of each replica of each stage; empty: equally many
  int microbatches = 1;           // a batch is computed in this many parts, gradients summed
  std::vector<int> versions;      // ssp: weight versions kept by each stage; empty: stages - i for stage i
  std::vector<int> ahead = {};    // forwards that a stage may run before its first backward, less one; empty: as needed
  bool static_scheduling = true;  // false: a worker may take an action that is ready before one that waits
  bool multi_buffer = true;       // one more activation buffer per stage, so that receiving overlaps computing
  bool recompute = false;    // keep what a stage received, run its forward again before backward; not the last stage
  double bucket_mib = 25;    // gradients are reduced over replicas in pieces of about this size
  std::string cluster = {};  // auto: the cluster file to plan for; empty: the workers there are, measured
  bool stale = false;        // auto: modes that update without waiting may be chosen too
  bool operator==(const Parallel&) const = default;
};

enum class Winograd { Auto, Off };
struct BackendOptions {
  Winograd winograd = Winograd::Auto;  // auto: measured against direct convolution per layer and pass
  bool remember = true;                // keep measured choices in the user's cache, so that runs repeat bit for bit
  bool operator==(const BackendOptions&) const = default;
};

struct Job {
  std::string name;    // of the run; default: the file's name without ending
  int64_t batch = 32;  // samples per step
  int64_t steps = 0;   // stop after so many steps; 0: after `epochs`
  double epochs = 1;   // ignored when steps is set
  int threads = 0;     // of a worker; 0: this host's cores shared among its workers
  uint64_t seed = 0;
  Device device = Device::Cpu;
  Precision precision = Precision::Fp32;
  bool deterministic = false;  // only algorithms that give the same bits every time
  Model model;
  Data data;
  Optimizer optimizer;
  Schedule schedule;
  Loss loss;
  LossScale loss_scale;
  Eval eval;
  Parallel parallel;
  BackendOptions backend;
  bool operator==(const Job&) const = default;
};

}  // namespace millrace::job
