// A job: everything a user says about a run, as plain structs with defaults. The reader (reader.h) fills it
// from YAML and --set, and refuses what it does not know; nothing below this folder reads YAML. A new member
// becomes a key by one line in fields.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::job {

enum class Device { Cpu, Reference };
enum class Precision { Fp32 };

struct Model {
  std::string name = "resnet50";  // alexnet, vgg16, vgg16_bn, resnet18, resnet34, resnet50, resnet_small
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

struct Eval {
  double every_epochs = 1;  // rounded to steps, at least one; 0: only at the end
  bool operator==(const Eval&) const = default;
};

struct Parallel {
  int microbatches = 1;  // a batch is computed in this many parts, gradients summed
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
  int threads = 0;     // 0: all cores
  uint64_t seed = 0;
  Device device = Device::Cpu;
  Precision precision = Precision::Fp32;
  Model model;
  Data data;
  Optimizer optimizer;
  Schedule schedule;
  Loss loss;
  Eval eval;
  Parallel parallel;
  BackendOptions backend;
  bool operator==(const Job&) const = default;
};

}  // namespace millrace::job
