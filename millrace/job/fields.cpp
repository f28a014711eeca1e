#include "millrace/job/fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "millrace/job/field_types.h"
#include "millrace/job/placement.h"
#include "millrace/job/text.h"

namespace millrace::job {
namespace {

std::vector<std::pair<std::string, std::string>> as_themselves(const std::vector<std::string>& names) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const std::string& name : names) pairs.emplace_back(name, name);
  return pairs;
}

void add_transform(std::vector<Field>& fields, const std::string& key, Transform Data::*which) {
  using T = Transform;
  const Range<double> share{0, 1};
  auto add = [&](Field field) { fields.push_back(std::move(field)); };
  add(choice<TransformKind>(key + ".kind",
                            {{"auto", TransformKind::Auto},
                             {"random_resized_crop", TransformKind::RandomResizedCrop},
                             {"pad_crop", TransformKind::PadCrop},
                             {"center_crop", TransformKind::CenterCrop},
                             {"resize", TransformKind::Resize}},
                            {}, "which part of a picture is used, at which size", &Job::data, which, &T::kind));
  add(number<double>(key + ".min_area", share, "0.08", "random_resized_crop: smallest share of the picture", &Job::data,
                     which, &T::min_area));
  add(number<double>(key + ".max_area", share, "1", "random_resized_crop: largest share of the picture", &Job::data,
                     which, &T::max_area));
  add(number<double>(key + ".min_aspect", {0.01, 100}, "0.75", "random_resized_crop: least width over height",
                     &Job::data, which, &T::min_aspect));
  add(number<double>(key + ".max_aspect", {0.01, 100}, "1.3333", "random_resized_crop: greatest width over height",
                     &Job::data, which, &T::max_aspect));
  add(number<int>(key + ".attempts", {1, 1000}, "10", "random_resized_crop: tries before the largest middle part",
                  &Job::data, which, &T::attempts));
  add(number<int>(key + ".pad", {0, 16'384}, "4", "pad_crop: pixels on each side", &Job::data, which, &T::pad));
  add(number<int>(key + ".short_side", {1, 16'384}, "256",
                  "center_crop: of the picture before the middle is cut out; auto: 8/7 of the input", &Job::data, which,
                  &T::short_side));
  add(number<double>(key + ".mirror", share, "0.5", "how often left and right are exchanged", &Job::data, which,
                     &T::mirror));
}

// The upper ends keep every product of extents, and every count of bytes or steps, within 63 bits.
std::vector<Field> make_fields() {
  using M = Model;
  using D = Data;
  using O = Optimizer;
  using S = Schedule;
  using P = Parallel;
  using B = BackendOptions;
  using E = Elastic;
  const Range<double> positive_or_zero{0, 1e9};
  const Range<double> below_one{0, 1, true};
  std::vector<Field> fields{
      free_text("name", "my-run", "name of the run; empty: the job file's name without its ending", &Job::name),
      number<int64_t>("batch", {1, 1'000'000}, "32", "samples per step", &Job::batch),
      number<int64_t>("steps", {0, 1'000'000'000'000}, "100", "stop after so many steps; 0: after epochs", &Job::steps),
      number<double>("epochs", {0, 1e6}, "90", "passes over the data, may be fractional; ignored when steps is set",
                     &Job::epochs),
      number<int>("threads", {0, 4096}, "2", "CPU threads of a worker; 0: this host's cores shared among its workers",
                  &Job::threads),
      number<uint64_t>("seed", {}, "1", "where all random numbers of the run come from", &Job::seed),
      choice<Device>("device", {{"cpu", Device::Cpu}, {"cuda", Device::Cuda}, {"reference", Device::Reference}}, {},
                     "what computes; cuda: NVIDIA GPUs; reference: plain loops, slow, for comparison", &Job::device),
      choice<Precision>(
          "precision",
          {{"fp32", Precision::Fp32}, {"tf32", Precision::Tf32}, {"fp16", Precision::Fp16}, {"bf16", Precision::Bf16}},
          {"fp64"}, "of values and gradients; fp16 and bf16 keep fp32 master weights; tf32: fp32 values",
          &Job::precision),
      flag("deterministic", "cuda: only algorithms that give the same bits every time", &Job::deterministic),
      choice<OnDivergence>("on_divergence", {{"stop", OnDivergence::Stop}, {"rollback", OnDivergence::Rollback}}, {},
                           "a loss that is not finite: stop, or back to the last checkpoint and past the data since",
                           &Job::on_divergence),

      choice<std::string>(
          "model.name",
          as_themselves({"alexnet", "alexnet_small", "vgg16", "vgg16_bn", "resnet18", "resnet34", "resnet50",
                         "resnet_small", "vit_s_16", "vit_b_16", "vit_l_16", "bert_base", "bert_large", "gpt2",
                         "gpt2_medium", "gpt2_large", "gpt2_xl", "bag_of_tokens"}),
          {}, "the network", &Job::model, &M::name),
      number<int>("model.classes", {1, 10'000'000}, "1000", "number of classes", &Job::model, &M::classes),
      number<int>("model.image_size", {1, 16'384}, "224", "height and width of the input", &Job::model, &M::image_size),
      number<int>("model.channels", {1, 1'024}, "3", "channels of the input", &Job::model, &M::channels),
      number<double>("model.dropout", {-1, 1, true}, "0.1", "share of values dropped; 0: none, -1: usual for the model",
                     &Job::model, &M::dropout),
      number<int>("model.width", {0, 65'536}, "768", "transformers, bag_of_tokens: features of a token; 0: by the name",
                  &Job::model, &M::width),
      number<int>("model.layers", {0, 10'000}, "12", "transformers: blocks; 0: by the name", &Job::model, &M::layers),
      number<int>("model.heads", {0, 10'000}, "12", "transformers: heads of an attention; 0: by the name", &Job::model,
                  &M::heads),
      number<int>("model.mlp", {0, 1'000'000}, "3072", "transformers: features within a block; 0: by the name",
                  &Job::model, &M::mlp),
      number<int>("model.patch", {1, 16'384}, "16", "vit: height and width of a patch", &Job::model, &M::patch),
      number<int>("model.vocabulary", {0, 100'000'000}, "30522",
                  "text: tokens, at least those of data.vocab; 0: 50257 for gpt2, else 30522", &Job::model,
                  &M::vocabulary),
      number<int>("model.tokens", {3, 1'000'000}, "128", "text: length, with [CLS] and [SEP]; longer ones are cut",
                  &Job::model, &M::tokens),
      choice<Head>("model.head", {{"classes", Head::Classes}, {"span", Head::Span}}, {},
                   "bert: one of the classes, or where in a text an answer begins and ends", &Job::model, &M::head),
      number<int>("model.frozen", {0, 10'000}, "6", "layers, from the first on, that are not trained", &Job::model,
                  &M::frozen),
      free_text("model.init", "weights.safetensors",
                "safetensors file with the first parameters; empty: random from the seed", &Job::model, &M::init),

      choice<DataKind>("data.kind",
                       {{"synthetic", DataKind::Synthetic},
                        {"generated", DataKind::Generated},
                        {"ofrecord", DataKind::OfRecord},
                        {"image_folder", DataKind::ImageFolder},
                        {"cifar10", DataKind::Cifar10},
                        {"cifar100", DataKind::Cifar100},
                        {"tsv_text", DataKind::TsvText},
                        {"squad", DataKind::Squad},
                        {"token_file", DataKind::TokenFile}},
                       {},
                       "synthetic: random, for speed; generated: images of classes that can be learned; the others "
                       "are files",
                       &Job::data, &D::kind),
      number<int64_t>("data.train_samples", {0, 1'000'000'000'000}, "5000",
                      "samples of an epoch; synthetic: 0 is one batch again and again", &Job::data, &D::train_samples),
      number<int64_t>("data.test_samples", {0, 1'000'000'000'000}, "1000", "generated: samples of the test split",
                      &Job::data, &D::test_samples),
      free_text("data.train", "imagenet/train", "files: the training split, a folder or a file", &Job::data, &D::train),
      free_text("data.test", "imagenet/validation", "files: the test split; empty: nothing is evaluated", &Job::data,
                &D::test),
      choice<OnError>("data.on_error", {{"stop", OnError::Stop}, {"skip", OnError::Skip}}, {},
                      "a sample that cannot be read: stop with its place and the reason, or count it and go on",
                      &Job::data, &D::on_error),
      choice<Color>("data.color", {{"strict", Color::Strict}, {"convert", Color::Convert}}, {},
                    "pictures without the network's channels (grayscale, CMYK): refused, or converted", &Job::data,
                    &D::color),
      number<int>("data.threads", {0, 1024}, "4", "threads that load; 0: the cores that computing leaves, at least one",
                  &Job::data, &D::threads),
      number<int>("data.ahead", {1, 64}, "2", "batches loaded before they are needed", &Job::data, &D::ahead),
      numbers<double>("data.mean", {-1e6, 1e6}, "[123.68, 116.779, 103.939]",
                      "subtracted from levels 0 to 255; empty: usual for the kind of data", &Job::data, &D::mean),
      numbers<double>("data.std", {1e-6, 1e6}, "[58.393, 57.12, 57.375]",
                      "levels are divided by it; empty: usual for the kind of data", &Job::data, &D::std),
      free_text("data.vocab", "vocab.txt", "text: BERT's WordPiece vocabulary, a token per line", &Job::data,
                &D::vocab),
      flag("data.lower_case", "text: lower case, without accents, as uncased models want it", &Job::data,
           &D::lower_case),
      choice<int>("data.token_bytes", {{"2", 2}, {"4", 4}}, {},
                  "token_file: bytes of a token, little-endian; 2 as nanoGPT's train.bin", &Job::data, &D::token_bytes),
      number<int>("data.doc_stride", {0, 1'000'000}, "128",
                  "squad: tokens that two neighbouring windows of a long text share", &Job::data, &D::doc_stride),
      number<int>("data.max_question", {1, 1'000'000}, "64", "squad: tokens of a question; a longer one is cut",
                  &Job::data, &D::max_question),
      number<int>("data.max_answer", {1, 1'000'000}, "30", "squad: most tokens of an answer in evaluation", &Job::data,
                  &D::max_answer),
      number<double>("data.noise", positive_or_zero, "0.5", "generated: standard deviation of the noise of a pixel",
                     &Job::data, &D::noise),

      choice<Algorithm>("optimizer.kind",
                        {{"sgd", Algorithm::Sgd}, {"adamw", Algorithm::AdamW}, {"lamb", Algorithm::Lamb}}, {"adam"},
                        "how gradients become steps", &Job::optimizer, &O::kind),
      number<double>("optimizer.lr", positive_or_zero, "0.1", "learning rate after warm-up", &Job::optimizer, &O::lr),
      number<double>("optimizer.momentum", below_one, "0.9", "sgd: share of the last step kept in the next",
                     &Job::optimizer, &O::momentum),
      flag("optimizer.nesterov", "sgd: look ahead along the momentum", &Job::optimizer, &O::nesterov),
      number<double>("optimizer.beta1", below_one, "0.9", "adamw, lamb: share kept of the mean of gradients",
                     &Job::optimizer, &O::beta1),
      number<double>("optimizer.beta2", below_one, "0.999", "adamw, lamb: share kept of the mean of their squares",
                     &Job::optimizer, &O::beta2),
      number<double>("optimizer.epsilon", {1e-30, 1}, "1e-8", "adamw, lamb: added to what is divided by",
                     &Job::optimizer, &O::epsilon),
      number<double>("optimizer.clip_norm", positive_or_zero, "1",
                     "gradients whose norm over the whole model is larger are scaled down to it; 0: never",
                     &Job::optimizer, &O::clip_norm),
      number<double>("optimizer.layer_decay", {0, 1}, "0.75",
                     "what each layer's rate is of the rate of the one behind it, from the head on; 1: all the same",
                     &Job::optimizer, &O::layer_decay),
      number<double>("optimizer.weight_decay", positive_or_zero, "5e-4", "pull of the weights towards zero",
                     &Job::optimizer, &O::weight_decay),
      flag("optimizer.decoupled", "sgd: decay weights by lr * weight_decay; false: add it to the gradient (L2)",
           &Job::optimizer, &O::decoupled),
      flag("optimizer.decay_bias", "decay biases too", &Job::optimizer, &O::decay_bias),
      flag("optimizer.decay_norm", "decay scale and shift of normalisation too", &Job::optimizer, &O::decay_norm),

      choice<Decay>("schedule.kind",
                    {{"constant", Decay::Constant},
                     {"step", Decay::Step},
                     {"cosine", Decay::Cosine},
                     {"linear", Decay::Linear},
                     {"polynomial", Decay::Polynomial}},
                    {}, "how the learning rate falls after warm-up", &Job::schedule, &S::kind),
      number<double>("schedule.warmup_epochs", {0, 1e6}, "5", "linear warm-up from 0 to lr, may be fractional",
                     &Job::schedule, &S::warmup_epochs),
      number<int64_t>("schedule.warmup_steps", {0, 1'000'000'000'000}, "500",
                      "the same in steps; at most one of the two", &Job::schedule, &S::warmup_steps),
      numbers<double>("schedule.milestones", {0, 1e6}, "[30, 60, 80]",
                      "step: epochs at which lr is multiplied by gamma", &Job::schedule, &S::milestones),
      number<double>("schedule.gamma", positive_or_zero, "0.1", "step: the factor", &Job::schedule, &S::gamma),
      number<double>("schedule.power", {0, 1e3}, "2", "polynomial: the exponent", &Job::schedule, &S::power),
      number<double>("schedule.end_lr", positive_or_zero, "1e-4",
                     "cosine, linear and polynomial: learning rate at the end", &Job::schedule, &S::end_lr),

      number<double>("loss.label_smoothing", below_one, "0.1", "share of the target spread over all classes",
                     &Job::loss, &Loss::label_smoothing),
      number<double>("loss_scale.start", {1, 1e30}, "32768", "fp16: factor on the loss, to keep small gradients",
                     &Job::loss_scale, &LossScale::start),
      number<double>("loss_scale.factor", {1, 1e30}, "2",
                     "fp16: the scale grows by it after interval good steps, and shrinks when a gradient overflows",
                     &Job::loss_scale, &LossScale::factor),
      number<int>("loss_scale.interval", {1, 1'000'000'000}, "2000", "fp16: good steps before the scale grows",
                  &Job::loss_scale, &LossScale::interval),
      number<double>("loss_scale.floor", {1e-30, 1e30}, "1", "fp16: the scale does not fall below", &Job::loss_scale,
                     &LossScale::floor),
      number<double>("eval.every_epochs", {0, 1e6}, "1",
                     "epochs between evaluations, at least one step; 0: only at the end", &Job::eval,
                     &Eval::every_epochs),

      period("checkpoint.every", "500 steps",
             "how often the state is saved: so many steps, min or epochs; off: only when the run is asked to end",
             &Job::checkpoint, &Checkpoint::every),
      number<int>("checkpoint.keep", {1, 1'000'000}, "3", "the newest so many checkpoints are kept", &Job::checkpoint,
                  &Checkpoint::keep),
      choice<Best>("checkpoint.best", {{"off", Best::Off}, {"loss", Best::Loss}, {"top1", Best::Top1}}, {},
                   "the checkpoint of the best evaluation is kept besides, judged by this", &Job::checkpoint,
                   &Checkpoint::best),
      number<double>("divergence.spike", positive_or_zero, "3",
                     "a loss so many times the mean of the last 50 steps is a divergence too; 0: not", &Job::divergence,
                     &Divergence::spike),
      number<int>("divergence.rollbacks", {1, 1'000'000}, "3", "after so many the run stops", &Job::divergence,
                  &Divergence::rollbacks),

      choice<Mode>("parallel.mode",
                   {{"dp", Mode::Dp},
                    {"gpipe", Mode::GPipe},
                    {"1f1b", Mode::OneFOneB},
                    {"pipedream", Mode::PipeDream},
                    {"ssp", Mode::Ssp},
                    {"auto", Mode::Auto}},
                   {}, "how work is ordered over stages; pipedream and ssp update without waiting; auto: as planned",
                   &Job::parallel, &P::mode),
      grammar("parallel.placement", "0:0-6.0:7",
              "node:devices of each stage, as in 0:0-6.0:7; empty: one stage on every worker there is", parse_placement,
              &Job::parallel, &P::placement),
      grammar("parallel.stage_weights", "10:1", "share of the model of each stage, as in 10:1; empty: equal shares",
              parse_stage_weights, &Job::parallel, &P::stage_weights),
      choice<Balance>("parallel.balance",
                      {{"operators", Balance::Operators}, {"flops", Balance::Flops}, {"time", Balance::Time}}, {},
                      "what the shares are shares of", &Job::parallel, &P::balance),
      names("parallel.cuts", "[layer2, layer4.0]", "instead of shares: the layer each further stage begins with",
            &Job::parallel, &P::cuts),
      free_text("parallel.stage_file", "stages.json",
                "instead of a placement: PipeDream's module_to_stage_map and stage_to_rank_map", &Job::parallel,
                &P::stage_file),
      choice<Replicas>("parallel.replicas", {{"split", Replicas::Split}, {"round_robin", Replicas::RoundRobin}}, {},
                       "split: a replica takes its rows of every micro-batch; round_robin: whole ones in turn",
                       &Job::parallel, &P::replicas),
      grammar("parallel.shares", "5:3.1",
              "split: rows of a stage's replicas, stages separated by dots, as in 5:3.1; empty: equally many",
              parse_shares, &Job::parallel, &P::shares),
      number<int>("parallel.microbatches", {1, 1'000'000}, "4",
                  "a batch is computed in this many parts, gradients summed", &Job::parallel, &P::microbatches),
      numbers<int>("parallel.versions", {1, 1'000}, "[2, 1]",
                   "ssp: weight versions kept by each stage; empty: stages - i for stage i", &Job::parallel,
                   &P::versions),
      numbers<int>("parallel.ahead", {0, 1'000}, "[0, 0]",
                   "forwards a stage may run ahead of its backwards; empty: enough to keep all later stages busy",
                   &Job::parallel, &P::ahead),
      flag("parallel.static_scheduling", "false: a worker may take an action that is ready before one that waits",
           &Job::parallel, &P::static_scheduling),
      flag("parallel.multi_buffer", "one more activation buffer per stage, so that receiving overlaps computing",
           &Job::parallel, &P::multi_buffer),
      number<double>("parallel.bucket_mib", {0.001, 1e6}, "25",
                     "gradients are reduced over replicas in pieces of about this size", &Job::parallel,
                     &P::bucket_mib),
      free_text("parallel.cluster", "clusters/v100-8x1.yaml",
                "auto: the cluster to plan for; empty: the workers there are, measured", &Job::parallel, &P::cluster),
      flag("parallel.stale", "auto: may also choose pipedream and ssp", &Job::parallel, &P::stale),
      number<double>("parallel.silence_s", {1, 1e6}, "8",
                     "a process that is not heard of for so many seconds is lost, and the job ends", &Job::parallel,
                     &P::silence_s),
      choice<bool>("parallel.nccl", {{"auto", true}, {"off", false}}, {},
                   "GPUs of several processes: auto: joined by NCCL where they can be; off: through the host",
                   &Job::parallel, &P::nccl),

      choice<Recompute>("memory.recompute",
                        {{"auto", Recompute::Auto},
                         {"off", Recompute::Off},
                         {"block", Recompute::Block},
                         {"stage", Recompute::Stage}},
                        {}, "what is computed again before backward instead of kept; auto: blocks, if memory is short",
                        &Job::parallel, &P::recompute),

      choice<Freeze>(
          "elastic.freeze", {{"off", Freeze::Off}, {"gradient", Freeze::Gradient}, {"schedule", Freeze::Schedule}}, {},
          "layers stand still one after another: gradient: those that learn least; schedule: alpha at a time",
          &Job::elastic, &E::freeze),
      fraction("elastic.alpha", "1/3", "share of the layers that still learn which may freeze at once", &Job::elastic,
               &E::alpha),
      period("elastic.every", "1 epoch", "how often it is decided what freezes: so many steps or epochs", &Job::elastic,
             &E::every),
      on_or_off("elastic.pipe", "what still learns is cut into stages anew, and into fewer where that pays",
                &Job::elastic, &E::pipe),
      on_or_off("elastic.dp", "devices that a shorter pipeline does not need become replicas", &Job::elastic, &E::dp),
      on_or_off("elastic.cache", "what frozen layers make of a sample is kept, not computed again", &Job::elastic,
                &E::cache),
      number<double>("elastic.cache_gib", {0, 1e6}, "2", "cache: GiB of memory", &Job::elastic, &E::cache_gib),
      number<double>("elastic.cache_disk_gib", {0, 1e6}, "20", "cache: GiB on the disk, for what memory does not hold",
                     &Job::elastic, &E::cache_disk_gib),
      free_text("elastic.cache_dir", "/scratch", "cache: on which disk; empty: the system's temporary directory",
                &Job::elastic, &E::cache_dir),
      choice<bool>("elastic.cache_precision", {{"as_computed", false}, {"fp16", true}}, {},
                   "cache: fp16 takes half the room, and rounds", &Job::elastic, &E::cache_half),
      choice<bool>("elastic.batch", {{"fixed", false}, {"grow", true}}, {},
                   "dp: grow: the batch of a replica stays, and lr follows the whole: in proportion (sgd), by the root",
                   &Job::elastic, &E::grows),
      number<double>("elastic.guard", positive_or_zero, "0.05",
                     "a test loss so much above the best, as a share of it, takes a freezing back; 0: never",
                     &Job::elastic, &E::guard),

      choice<Winograd>("backend.winograd", {{"auto", Winograd::Auto}, {"off", Winograd::Off}}, {},
                       "auto: it, and Strassen, where measured to be faster; off: never, strictest rounding",
                       &Job::backend, &B::winograd),
      flag("backend.remember", "keep measured choices in the user's cache, so that runs repeat bit for bit",
           &Job::backend, &B::remember),
  };
  std::vector<Field> transforms;
  add_transform(transforms, "data.train_transform", &D::train_transform);
  add_transform(transforms, "data.test_transform", &D::test_transform);
  const auto after_data = std::find_if(fields.begin(), fields.end(),
                                       [](const Field& field) { return field.key.starts_with("optimizer."); });
  fields.insert(after_data, transforms.begin(), transforms.end());
  return fields;
}

// "a.b" -> {"a", "b"}; "b" -> {"", "b"}.
std::pair<std::string_view, std::string_view> split(std::string_view key) {
  const size_t dot = key.rfind('.');
  if (dot == std::string_view::npos) return {"", key};
  return {key.substr(0, dot), key.substr(dot + 1)};
}

}  // namespace

std::string Field::section() const { return std::string(split(key).first); }
std::string Field::leaf() const { return std::string(split(key).second); }

const std::vector<Field>& fields() {
  static const std::vector<Field> table = make_fields();
  return table;
}

const Field* find_field(std::string_view key) {
  for (const Field& field : fields()) {
    if (field.key == key) return &field;
  }
  return nullptr;
}

bool is_section(std::string_view key) {
  return !key.empty() && std::any_of(fields().begin(), fields().end(),
                                     [&](const Field& field) { return split(field.key).first == key; });
}

std::string advice_for_unknown_key(const std::string& key) {
  const auto [section, leaf] = split(key);
  // Likeliest first: a key that only one other place has, or the top; a key or section of the same place, both parts a
  // little off, nearly the right key in the wrong place.
  std::vector<std::string> same, beside, both_near, elsewhere, names_beside;
  for (const Field& field : fields()) {
    const auto [its_section, its_leaf] = split(field.key);
    if (its_section == section) names_beside.emplace_back(its_leaf);
    if (its_section == section && is_near(leaf, its_leaf)) beside.push_back(field.key);
    if (section.empty() && !its_section.empty() && is_near(leaf, its_section)) beside.emplace_back(its_section);
    if (is_near(section, its_section) && is_near(leaf, its_leaf)) both_near.push_back(field.key);
    if (is_near(leaf, its_leaf)) elsewhere.push_back(field.key);
    if (leaf == its_leaf) same.push_back(field.key);
  }
  const bool is_top = std::find(same.begin(), same.end(), leaf) != same.end();
  if (same.size() == 1 || is_top) return fmt::format("did you mean \"{}\"?", is_top ? std::string(leaf) : same[0]);
  for (const auto& candidates : {beside, both_near}) {
    if (const std::string near = nearest(key, candidates); !near.empty())
      return fmt::format("did you mean \"{}\"?", near);
  }
  // Far as a whole path, so compared by the last part alone.
  const auto closest =
      std::min_element(elsewhere.begin(), elsewhere.end(), [leaf = leaf](const auto& a, const auto& b) {
        return edit_distance(leaf, split(a).second) < edit_distance(leaf, split(b).second);
      });
  if (closest != elsewhere.end()) return fmt::format("did you mean \"{}\"?", *closest);
  if (!section.empty() && !names_beside.empty()) {
    return fmt::format("{} has {}", section, fmt::join(names_beside, ", "));
  }
  std::vector<std::string> top;
  for (const Field& field : fields()) {
    const std::string first = field.section().empty() ? field.key : field.section();
    if (top.empty() || top.back() != first) top.push_back(first);
  }
  return fmt::format("a job has {}", fmt::join(top, ", "));
}

}  // namespace millrace::job
