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

// What a model says of a sample.
enum class Head {
  Classes,  // one of them; a language model: which token comes next, everywhere
  Span,     // bert: where in a text the answer to a question begins and ends
};

struct Model {
  std::string name = "resnet50";  // one of model::model_names()
  int classes = 1000;
  int image_size = 224;  // height and width of the input
  int channels = 3;
  double dropout = -1;  // 0 turns it off; -1: usual for the model
  // Transformers and bag_of_tokens; 0: as the model's name says.
  int width = 0;       // features of a token
  int layers = 0;      // blocks
  int heads = 0;       // of an attention
  int mlp = 0;         // features between the two linear layers of a block
  int patch = 16;      // vit: height and width of the squares that become tokens
  int vocabulary = 0;  // text: tokens that there are
  int tokens = 128;    // text: length, with [CLS] and [SEP]
  Head head = Head::Classes;
  std::string init = {};  // a safetensors file with the model's parameters; empty: random from the seed
  int frozen = 0;         // layers, from the first on, that stand still, with what comes before them
  bool operator==(const Model&) const = default;
};

inline bool is_bert(const Model& model) { return model.name.starts_with("bert"); }
inline bool is_gpt(const Model& model) { return model.name.starts_with("gpt2"); }
inline bool reads_tokens(const Model& model) {
  return model.name == "bag_of_tokens" || is_bert(model) || is_gpt(model);
}
inline int vocabulary_of(const Model& model) {
  return model.vocabulary > 0 ? model.vocabulary : is_gpt(model) ? 50257 : 30522;
}
// Numbers of each token: its id, and for BERT its segment.
inline int token_planes(const Model& model) { return is_bert(model) ? 2 : 1; }

// How a stored picture becomes the network's input.
enum class TransformKind {
  Auto,               // as is usual for the kind of data and the split
  RandomResizedCrop,  // a random part of random shape, resized
  PadCrop,            // zeros around, then a random part of the input's size
  CenterCrop,         // short side resized, then the middle
  Resize,             // the whole picture, its shape not kept
};
struct Transform {
  TransformKind kind = TransformKind::Auto;
  double min_area = 0.08, max_area = 1;           // random_resized_crop: share of the picture
  double min_aspect = 0.75, max_aspect = 4. / 3;  // random_resized_crop: width over height
  int attempts = 10;                              // random_resized_crop: then the largest middle part is taken
  int pad = 4;                                    // pad_crop: pixels on each side
  int short_side = 256;                           // center_crop
  double mirror = 0.5;                            // how often left and right are exchanged
  bool operator==(const Transform&) const = default;
};

enum class DataKind { Synthetic, Generated, OfRecord, ImageFolder, Cifar10, Cifar100, TsvText, Squad, TokenFile };
constexpr bool is_from_files(DataKind kind) { return kind != DataKind::Synthetic && kind != DataKind::Generated; }
// Words that a vocabulary turns into tokens.
constexpr bool is_words(DataKind kind) { return kind == DataKind::TsvText || kind == DataKind::Squad; }
constexpr bool is_text(DataKind kind) { return is_words(kind) || kind == DataKind::TokenFile; }

enum class OnError { Stop, Skip };
enum class Color { Strict, Convert };

struct Data {
  DataKind kind = DataKind::Synthetic;
  int64_t train_samples = 0;  // generated: samples of one epoch; synthetic: 0 is one batch again and again
  int64_t test_samples = 0;   // generated: samples of the test split
  double noise = 0.5;         // generated: standard deviation of the pixel noise around a class pattern

  std::string train = {};  // files: where the training split is
  std::string test = {};   // files: where the test split is; empty: nothing is evaluated
  OnError on_error = OnError::Stop;
  int threads = 0;  // that load; 0: as many as there are cores to spare
  int ahead = 2;    // batches loaded before they are needed

  Transform train_transform = {};
  Transform test_transform = {.mirror = 0};
  std::vector<double> mean = {}, std = {};  // of levels 0 to 255, red, green, blue; empty: usual for the kind of data
  Color color = Color::Strict;              // pictures that do not have the network's channels: refused or converted

  std::string vocab = {};  // text: a vocab.txt
  bool lower_case = true;  // text: and accents stripped
  int token_bytes = 2;     // token_file: of each token
  int doc_stride = 128;    // squad: tokens that neighbouring windows of a text share
  int max_question = 64;   // squad: tokens, of a longer question the end is cut
  int max_answer = 30;     // squad: tokens of an answer that evaluation gives

  bool has_test() const {
    return is_from_files(kind) ? !test.empty() : kind == DataKind::Generated && test_samples > 0;
  }
  bool operator==(const Data&) const = default;
};

enum class Algorithm { Sgd, AdamW, Lamb };
struct Optimizer {
  Algorithm kind = Algorithm::Sgd;
  double lr = 0.1;
  double momentum = 0.9;                              // sgd
  bool nesterov = false;                              // sgd
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;  // adamw and lamb
  double clip_norm = 0;    // gradients whose norm over the whole model is larger are scaled down to it; 0: never
  double layer_decay = 1;  // a layer's rate is this power of its distance from the head
  double weight_decay = 0.0;
  bool decoupled = false;  // sgd: decay weights by lr * weight_decay instead of adding it to the gradient (L2)
  bool decay_bias = true;  // false: biases are not decayed
  bool decay_norm = true;  // false: batch-norm scale and shift are not decayed
  bool operator==(const Optimizer&) const = default;
};

enum class Decay { Constant, Step, Cosine, Linear, Polynomial };
struct Schedule {
  Decay kind = Decay::Constant;
  double warmup_epochs = 0;        // linear from 0 to lr; may be fractional
  int64_t warmup_steps = 0;        // the same in steps; at most one of the two
  std::vector<double> milestones;  // step: epochs at which lr is multiplied by gamma
  double gamma = 0.1;
  double power = 1.0;   // polynomial
  double end_lr = 0.0;  // cosine, linear and polynomial
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

// "500 steps", "10 min", "1 epoch" or "off".
struct Period {
  enum class Unit { Off, Steps, Minutes, Epochs };
  Unit unit = Unit::Off;
  double count = 0;
  bool operator==(const Period&) const = default;
};

enum class Best { Off, Loss, Top1 };
struct Checkpoint {
  Period every = {};
  int keep = 3;           // the newest so many
  Best best = Best::Off;  // the best of all evaluations is kept besides, judged by this
  bool operator==(const Checkpoint&) const = default;
};

// What happens when the loss is not finite, or far above what it was.
enum class OnDivergence {
  Stop,
  Rollback,  // the state of the last checkpoint, and on with the data behind what was met since
};
struct Divergence {
  double spike = 0;   // a loss so many times the mean of the last 50 steps; 0: only one that is not finite
  int rollbacks = 3;  // then it stops after all
  bool operator==(const Divergence&) const = default;
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
// What is computed again before its backward instead of being kept.
enum class Recompute {
  Auto,   // blocks, where memory would not suffice otherwise
  Off,    // nothing
  Block,  // the inside of each block of the model
  Stage,  // the inside of each stage but the last, while several micro-batches are in flight
};
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
  Recompute recompute = Recompute::Auto;
  double bucket_mib = 25;    // gradients are reduced over replicas in pieces of about this size
  std::string cluster = {};  // auto: the cluster file to plan for; empty: the workers there are, measured
  bool stale = false;        // auto: modes that update without waiting may be chosen too
  double silence_s = 8;      // a process that is not heard of for so long is lost
  bool nccl = true;          // GPUs of several processes are joined by NCCL, where they can be
  bool operator==(const Parallel&) const = default;
};

// More and more layers stand still as training goes on; what that frees is used.
enum class Freeze {
  Off,
  Gradient,  // up to the layer whose gradients were smallest, and by no more than alpha of what is left
  Schedule,  // by alpha of what is left
};
struct Elastic {
  Freeze freeze = Freeze::Off;
  double alpha = 1. / 3;
  Period every = {Period::Unit::Epochs, 1};  // between decisions
  bool pipe = false;                         // the pipeline is planned again, and may become shorter
  bool dp = false;                           // devices that a shorter pipeline frees become replicas
  bool cache = false;                        // what frozen layers make of a sample is kept
  double cache_gib = 2;                      // of memory
  double cache_disk_gib = 0;                 // on the disk, for what memory does not hold
  std::string cache_dir = {};                // on which disk; empty: the system's temporary directory
  bool cache_half = false;                   // kept with sixteen bits
  bool grows = false;                        // the batch, with the number of replicas
  double guard = 0;  // a test loss so much above the best, as a share of it, takes a freezing back; 0: never
  bool operator==(const Elastic&) const = default;
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
  Checkpoint checkpoint;
  OnDivergence on_divergence = OnDivergence::Stop;
  Divergence divergence;
  Parallel parallel;
  Elastic elastic;
  BackendOptions backend;
  bool operator==(const Job&) const = default;
};

}  // namespace millrace::job
