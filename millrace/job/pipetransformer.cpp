#include "millrace/job/pipetransformer.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "millrace/base/error.h"
#include "millrace/job/small_file.h"
#include "millrace/job/text.h"
#include "millrace/job/validate.h"
#include "millrace/job/yaml_tree.h"

namespace millrace::job {
namespace {

using Kind = YamlTree::Kind;

// Its keys, whatever section they stand in; the last ones say nothing that a job could use.
const std::vector<std::string> kKeys{"pipe_len_at_the_beginning",
                                     "num_chunks_of_micro_batches",
                                     "freeze_strategy_alpha",
                                     "b_freeze",
                                     "b_auto_pipe",
                                     "b_auto_dp",
                                     "b_cache",
                                     "model",
                                     "pretrained_dir",
                                     "dataset",
                                     "data_dir",
                                     "img_size",
                                     "batch_size",
                                     "lr",
                                     "wd",
                                     "client_optimizer",
                                     "decay_type",
                                     "warmup_steps",
                                     "epochs",
                                     "freq_eval_test_acc",
                                     "is_distributed",
                                     "is_infiniband",
                                     "if_name",
                                     "freq_eval_train_acc",
                                     "is_debug_mode"};

class Settings {
 public:
  Settings(const std::string& text, std::string file_name) : file_(std::move(file_name)) {
    const YamlTree document = parse_yaml(text, file_, "PipeTransformer file", "optimizer_args: {batch_size: 320}");
    if (document.kind != Kind::Map) refuse_form(document.line);
    for (const YamlTree::Entry& section : document.entries) {
      if (section.value.kind != Kind::Map) refuse_form(section.line);
      for (const YamlTree::Entry& entry : section.value.entries) take(entry);
    }
  }

  std::string text(const std::string& key, const std::string& otherwise) const {
    const auto found = values_.find(key);
    return found == values_.end() ? otherwise : found->second.text;
  }
  template <typename T>
  T number(const std::string& key, T least, T otherwise) const {
    const auto found = values_.find(key);
    if (found == values_.end()) return otherwise;
    T value{};
    if (parse_number(found->second.text, value) != NumberFault::Ok || value < least) {
      fail_input("{}: {} is {}; write a {}number from {} on, e.g. {}: {}", place(key), key,
                 in_quotes(found->second.text), std::is_integral_v<T> ? "whole " : "", least, key, otherwise);
    }
    return value;
  }
  bool flag(const std::string& key, bool otherwise) const {
    const std::string value = text(key, otherwise ? "True" : "False");
    for (const char* yes : {"True", "true", "1"}) {
      if (value == yes) return true;
    }
    for (const char* no : {"False", "false", "0"}) {
      if (value == no) return false;
    }
    fail_input("{}: {} is {}; write True or False", place(key), key, in_quotes(value));
  }
  // Where a key stands, for messages; the file where it does not.
  std::string place(const std::string& key) const {
    const auto found = values_.find(key);
    return found == values_.end() ? file_ : fmt::format("{}:{}", file_, found->second.line);
  }

 private:
  struct Value {
    std::string text;
    int line = 0;
  };

  [[noreturn]] void refuse_form(int line) const {
    fail_input(
        "{}:{}: not of PipeTransformer's form; it has sections of keys, e.g. optimizer_args: with batch_size: 320 "
        "under it",
        file_, std::max(line, 1));
  }

  void take(const YamlTree::Entry& entry) {
    if (std::find(kKeys.begin(), kKeys.end(), entry.key) == kKeys.end()) {
      const std::string near = nearest(entry.key, kKeys);
      fail_input("{}:{}: PipeTransformer has no key {}{}", file_, entry.line, in_quotes(entry.key),
                 near.empty() ? "; leave it out" : fmt::format("; did you mean {}?", in_quotes(near)));
    }
    if (entry.value.kind != Kind::Text) fail_input("{}:{}: {} has no value", file_, entry.line, entry.key);
    const auto [first, is_new] = values_.emplace(entry.key, Value{entry.value.text, entry.line});
    if (!is_new) {
      fail_input("{}:{}: {} is given twice, first on line {}", file_, entry.line, entry.key, first->second.line);
    }
  }

  const std::string file_;
  std::map<std::string, Value> values_;
};

// Stage s of every pipeline: they lie one after another on the devices of each node.
std::string placement_of(const Machines& machines, int stages) {
  std::string placement;
  for (int stage = 0; stage < stages; ++stage) {
    if (stage > 0) placement += '.';
    for (int node = 0; node < machines.nodes; ++node) {
      for (int first = 0; first < machines.devices; first += stages) {
        if (node + first > 0) placement += ',';
        placement += fmt::format("{}:{}", node, first + stage);
      }
    }
  }
  return placement;
}

class Converter {
 public:
  Converter(const Settings& settings, const Machines& machines) : settings_(settings), machines_(machines) {}

  ConvertedJob convert(const std::string& name) {
    job().name = name;
    add_model();
    add_data();
    add_optimizer();
    add_pipeline();
    add_switches();
    return std::move(made_);
  }

 private:
  Job& job() { return made_.job; }
  template <typename... Args>
  void note(fmt::format_string<Args...> format, Args&&... args) {
    made_.notes.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  void add_model() {
    const std::string model = settings_.text("model", "transformer");
    if (model != "transformer") {
      fail_input("{}: model is {}; only transformer, a ViT-B/16, is known", settings_.place("model"), in_quotes(model));
    }
    job().model.name = "vit_b_16";
    job().model.image_size = settings_.number("img_size", 16, 224);
    if (const std::string weights = settings_.text("pretrained_dir", ""); !weights.empty()) {
      note("pretrained_dir: {} is not read; for those weights write model.init with a safetensors file of them",
           weights);
    }
  }

  void add_data() {
    struct Known {
      const char* name;
      DataKind kind;
      int classes;
    };
    const std::string name = settings_.text("dataset", "cifar100");
    for (const Known& known : {Known{"cifar10", DataKind::Cifar10, 10}, Known{"cifar100", DataKind::Cifar100, 100},
                               Known{"imagenet", DataKind::ImageFolder, 1000}}) {
      if (name != known.name) continue;
      job().data.kind = known.kind;
      job().model.classes = known.classes;
      const std::string folder = settings_.text("data_dir", "./data/" + name);
      job().data.train = job().data.test = folder;
      if (known.kind == DataKind::ImageFolder) {
        job().data.train = folder + "/train";
        job().data.test = folder + "/val";
      } else {
        note("data_dir: {} must hold the binary version of {}, not the pickled one", folder, name);
      }
      job().data.mean = job().data.std = {127.5, 127.5, 127.5};
      return;
    }
    fail_input("{}: dataset is {}; write cifar10, cifar100 or imagenet", settings_.place("dataset"), in_quotes(name));
  }

  void add_optimizer() {
    Optimizer& optimizer = job().optimizer;
    optimizer.lr = settings_.number("lr", 0.0, 0.03);
    optimizer.weight_decay = settings_.number("wd", 0.0, 0.3);
    optimizer.clip_norm = 1;  // in its code
    if (settings_.text("client_optimizer", "sgd") != "sgd") {
      optimizer.kind = Algorithm::AdamW;
      note("client_optimizer: {}: AdamW is taken, which decays weights apart from their gradients",
           settings_.text("client_optimizer", ""));
    }
    job().epochs = settings_.number("epochs", 1, 300);
    const std::string decay = settings_.text("decay_type", "cosine");
    if (decay != "cosine" && decay != "linear") {
      fail_input("{}: decay_type is {}; write cosine or linear", settings_.place("decay_type"), in_quotes(decay));
    }
    job().schedule.kind = decay == "cosine" ? Decay::Cosine : Decay::Linear;
    job().schedule.warmup_steps = settings_.number<int64_t>("warmup_steps", 0, 30);
    note("decay_type: {} falls once over the whole run; PipeTransformer began it anew at every epoch", decay);
    job().eval.every_epochs = settings_.number("freq_eval_test_acc", 1, 1);
  }

  void add_pipeline() {
    const int stages = settings_.number("pipe_len_at_the_beginning", 1, 4);
    if (machines_.devices % stages != 0) {
      fail_input("{}: pipe_len_at_the_beginning is {}, which does not divide the {} devices of a node; write --devices",
                 settings_.place("pipe_len_at_the_beginning"), stages, machines_.devices);
    }
    const int replicas = machines_.nodes * machines_.devices / stages;
    job().batch = settings_.number<int64_t>("batch_size", 1, 128) * replicas;
    Parallel& parallel = job().parallel;
    parallel.placement = placement_of(machines_, stages);
    if (stages > 1) {
      parallel.mode = Mode::GPipe;
      parallel.balance = Balance::Flops;
      parallel.microbatches = settings_.number("num_chunks_of_micro_batches", 1, 8);
      if (job().batch % parallel.microbatches != 0) {
        fail_input("{}: batch_size x {} pipelines is {}, which {} chunks do not divide; write another of the two",
                   settings_.place("num_chunks_of_micro_batches"), replicas, job().batch, parallel.microbatches);
      }
    }
    if (replicas > 1) note("batch: {} is that of {} pipelines together", job().batch, replicas);
  }

  void add_switches() {
    Elastic& elastic = job().elastic;
    elastic.alpha = settings_.number("freeze_strategy_alpha", 0.0, 0.5);
    if (!settings_.flag("b_freeze", true)) return;  // the others do nothing without it
    elastic.freeze = Freeze::Gradient;
    elastic.pipe = settings_.flag("b_auto_pipe", true);
    elastic.dp = elastic.pipe && settings_.flag("b_auto_dp", true);
    elastic.cache = settings_.flag("b_cache", true);
    if (!elastic.cache) return;
    // What is kept of a picture is of that picture, not of one of its crops.
    for (Transform* transform : {&job().data.train_transform, &job().data.test_transform}) {
      transform->kind = TransformKind::Resize;
      transform->mirror = 0;
    }
    note("b_cache: pictures are resized, without crops and mirrors; PipeTransformer kept whichever it met first");
  }

  const Settings& settings_;
  const Machines machines_;
  ConvertedJob made_;
};

}  // namespace

ConvertedJob parse_pipetransformer(const std::string& text, const std::string& file_name, const Machines& machines) {
  const Settings settings(text, file_name);
  ConvertedJob made = Converter(settings, machines).convert(std::filesystem::path(file_name).stem().string());
  validate(made.job, file_name);
  return made;
}

ConvertedJob read_pipetransformer(const std::string& path, const Machines& machines) {
  return parse_pipetransformer(read_small_file(path, "PipeTransformer file"), path, machines);
}

}  // namespace millrace::job
