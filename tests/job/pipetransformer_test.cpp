// Files of PipeTransformer as jobs.
#include "millrace/job/pipetransformer.h"

#include <gmock/gmock.h>

#include "millrace/job/placement.h"
#include "millrace/job/reader.h"

namespace millrace::job {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr const char* kFile = R"(dist_args:
  is_distributed: 1
  if_name: eth0
  pipe_len_at_the_beginning: 4
pipetransformer_args:
  num_chunks_of_micro_batches: 16
  freeze_strategy_alpha: 0.4
  b_freeze: True
  b_auto_pipe: True
  b_auto_dp: True
  b_cache: True
model_args: {model: transformer, pretrained_dir: ViT-B_16.npz}
dataset_args: {dataset: cifar100, data_dir: ./data/cifar100, img_size: 224}
optimizer_args: {batch_size: 320, lr: 0.1, wd: 0.3, client_optimizer: sgd, decay_type: cosine, warmup_steps: 2, epochs: 10}
log_tracking_args: {freq_eval_train_acc: 4, freq_eval_test_acc: 2}
debug_args: {is_debug_mode: 0}
)";

std::string with(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(PipeTransformer, BecomesAJobOnTheSameMachines) {
  const ConvertedJob made = parse_pipetransformer(kFile, "all_in_one.yaml", {2, 8});
  const Job& job = made.job;
  EXPECT_EQ(job.name, "all_in_one");
  EXPECT_EQ(job.model.name, "vit_b_16");
  EXPECT_EQ(job.model.classes, 100);
  EXPECT_EQ(job.data.kind, DataKind::Cifar100);
  EXPECT_EQ(job.data.train, "./data/cifar100");
  EXPECT_EQ(job.epochs, 10);
  EXPECT_EQ(job.optimizer.lr, 0.1);
  EXPECT_EQ(job.optimizer.weight_decay, 0.3);
  EXPECT_EQ(job.schedule.kind, Decay::Cosine);
  EXPECT_EQ(job.schedule.warmup_steps, 2);
  EXPECT_EQ(job.eval.every_epochs, 2);
  // Two pipelines of four stages on each of two nodes.
  EXPECT_EQ(job.batch, 4 * 320);
  EXPECT_EQ(job.parallel.mode, Mode::GPipe);
  EXPECT_EQ(job.parallel.microbatches, 16);
  const auto stages = parse_placement(job.parallel.placement);
  ASSERT_EQ(stages.size(), 4u);
  EXPECT_EQ(stages[0], (std::vector<DeviceId>{{0, 0}, {0, 4}, {1, 0}, {1, 4}}));
  EXPECT_EQ(stages[3], (std::vector<DeviceId>{{0, 3}, {0, 7}, {1, 3}, {1, 7}}));
  EXPECT_EQ(job.elastic.freeze, Freeze::Gradient);
  EXPECT_EQ(job.elastic.alpha, 0.4);
  EXPECT_TRUE(job.elastic.pipe && job.elastic.dp && job.elastic.cache);
  EXPECT_THAT(made.notes, testing::Contains(HasSubstr("pretrained_dir: ViT-B_16.npz is not read")));
}

TEST(PipeTransformer, SwitchesDoNothingWithoutFreezing) {
  const Job job = parse_pipetransformer(with(kFile, "b_freeze: True", "b_freeze: False"), "f", {1, 4}).job;
  EXPECT_EQ(job.elastic.freeze, Freeze::Off);
  EXPECT_FALSE(job.elastic.pipe || job.elastic.dp || job.elastic.cache);
  EXPECT_EQ(job.batch, 320);
}

TEST(PipeTransformer, WhatIsWrittenReadsBackEqual) {
  const Job job = parse_pipetransformer(kFile, "all.yaml", {}).job;
  const std::string text = to_short_yaml(job);
  EXPECT_EQ(parse_job(text, "again.yaml", {}), job);
  EXPECT_THAT(text, testing::Not(HasSubstr("momentum"))) << "as everybody has it";
}

TEST(PipeTransformer, WhatItCannotMeanIsRefusedByLine) {
  const auto refuses = [](const std::string& from, const std::string& to, const std::string& words,
                          const Machines& machines = {}) {
    EXPECT_THAT([&] { parse_pipetransformer(with(kFile, from, to), "a.yaml", machines); },
                ThrowsMessage<std::invalid_argument>(HasSubstr(words)));
  };
  refuses("b_freeze", "b_freze", R"(a.yaml:8: PipeTransformer has no key "b_freze"; did you mean "b_freeze"?)");
  refuses("batch_size: 320", "batch_size: many", R"(a.yaml:14: batch_size is "many"; write a whole number from 1 on)");
  refuses("dataset: cifar100", "dataset: mnist",
          R"(a.yaml:13: dataset is "mnist"; write cifar10, cifar100 or imagenet)");
  refuses("b_cache: True", "b_cache: maybe", R"(a.yaml:11: b_cache is "maybe"; write True or False)");
  refuses("beginning: 4", "beginning: 3",
          "a.yaml:4: pipe_len_at_the_beginning is 3, which does not divide the 8 devices");
  refuses("batches: 16", "batches: 7", "a.yaml:6: batch_size x 4 pipelines is 1280, which 7 chunks do not divide");
  refuses("alpha: 0.4", "alpha: 1.5", "elastic.alpha");
  refuses("dist_args:", "dist_args: 4\nother:", "a.yaml:1: not of PipeTransformer's form");
}

}  // namespace
}  // namespace millrace::job
