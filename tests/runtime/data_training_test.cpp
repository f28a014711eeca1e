// From files to the accuracy that their making allows: some labels are wrong, in training and in test, and no network
// can tell which.
#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "millrace/data/generated.h"
#include "runtime/training_harness.h"
#include "state/temporary_folder.h"

namespace millrace::runtime {
namespace {

class DataTraining : public state::TemporaryFolder {
 protected:
  void SetUp() override {
    TemporaryFolder::SetUp();
    if (!kFast) GTEST_SKIP() << "too slow without optimised kernels";
  }

  // CIFAR-10's binary files, written byte by byte: class patterns under noise, `wrong` of the labels drawn anew.
  void write_cifar(double wrong) {
    write_cifar_file("data_batch_1.bin", data::Split::Train, 2000, wrong);
    write_cifar_file("test_batch.bin", data::Split::Test, 500, wrong);
  }
  void write_cifar_file(const std::string& name, data::Split split, int64_t samples, double wrong) {
    const data::Generated generated({3, 32, 10}, samples, 0.3, 17, split);
    std::ofstream file(path(name), std::ios::binary);
    std::mt19937 dice(split == data::Split::Train ? 1 : 2);
    std::vector<float> image(3 * 32 * 32);
    for (int64_t sample = 0; sample < samples; ++sample) {
      int32_t label = 0;
      generated.fill(std::vector<int64_t>{sample}, 0, image.data(), &label);
      if (std::uniform_real_distribution<double>()(dice) < wrong) label = static_cast<int32_t>(dice() % 10);
      file.put(static_cast<char>(label));
      for (const float level : image) file.put(static_cast<char>(std::clamp(128 + 50 * level, 0.0f, 255.0f)));
    }
  }

  // Sentences of common words, with a few that belong to the label's class.
  void write_sentences(const std::string& name, int rows, double wrong, unsigned seed) {
    std::mt19937 dice(seed);
    std::ofstream file(path(name));
    file << "index\tlabel\tsentence\n";
    for (int row = 0; row < rows; ++row) {
      const auto topic = dice() % 4;
      std::string sentence;
      for (int word = 0; word < 12; ++word) {
        if (word > 0) sentence += ' ';
        const bool telling = word % 4 == 1;
        sentence += telling ? "topic" + std::string(1, static_cast<char>('a' + topic)) + std::to_string(dice() % 10)
                            : "Common" + std::to_string(dice() % 50);
      }
      const auto label = std::uniform_real_distribution<double>()(dice) < wrong ? dice() % 4 : topic;
      file << row << '\t' << label << '\t' << sentence << ".\n";
    }
  }
  void write_vocab() {
    std::ofstream file(path("vocab.txt"));
    file << "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n.\n";
    for (int i = 0; i < 50; ++i) file << "common" << i << '\n';
    for (char topic = 'a'; topic <= 'd'; ++topic) file << "topic" << topic << '\n';
    for (int i = 0; i < 10; ++i) file << "##" << i << '\n';
  }

  static double accuracy(const job::Job& job) {
    const RunResult done = run(job);
    EXPECT_TRUE(done.result.evaluation);
    const double accuracy = done.result.evaluation->top1 / done.result.evaluation->rows;
    RecordProperty("accuracy", std::to_string(accuracy));
    return accuracy;
  }
};

TEST_F(DataTraining, ASmallResnetLearnsACifarSetAsFarAsItsLabelsAllow) {
  write_cifar(0.1);
  job::Job job;
  job.name = "cifar";
  job.model = {.name = "resnet_small", .classes = 10, .image_size = 32};
  job.data.kind = job::DataKind::Cifar10;
  job.data.train = job.data.test = folder_.string();
  job.data.train_transform.mirror = 0;  // patterns have a direction
  job.batch = 50;
  job.epochs = 5;
  job.seed = 3;
  job.optimizer = {.lr = 0.1, .momentum = 0.9, .weight_decay = 1e-4};
  job.schedule.kind = job::Decay::Cosine;
  job.eval.every_epochs = 0;
  const double reached = accuracy(job);
  EXPECT_GT(reached, 0.85);         // 0.91 of the test labels are right
  EXPECT_LT(reached, 0.91 + 0.04);  // three deviations of 500 draws: no label is known from elsewhere
}

// What all small transformers are trained with.
void use_adam(job::Job& job, double lr) {
  job.optimizer.kind = job::Algorithm::AdamW;
  job.optimizer.lr = lr;
  job.optimizer.weight_decay = 0.01;
  job.optimizer.clip_norm = 1;
  job.schedule.kind = job::Decay::Linear;
  job.schedule.warmup_steps = 20;
  job.eval.every_epochs = 0;
}

TEST_F(DataTraining, ASmallVisionTransformerLearnsACifarSetAsFarAsItsLabelsAllow) {
  write_cifar_file("data_batch_1.bin", data::Split::Train, 5000, 0.1);  // it needs more than a convolution does
  write_cifar_file("test_batch.bin", data::Split::Test, 500, 0.1);
  job::Job job;
  job.name = "vit";
  job.model = {
      .name = "vit_b_16", .classes = 10, .image_size = 32, .width = 48, .layers = 2, .heads = 4, .mlp = 96, .patch = 8};
  job.data.kind = job::DataKind::Cifar10;
  job.data.train = job.data.test = folder_.string();
  job.data.train_transform = {.kind = job::TransformKind::Resize, .mirror = 0};  // places mean something to it
  job.batch = 50;
  job.epochs = 5;
  job.seed = 3;
  use_adam(job, 2e-3);
  const double reached = accuracy(job);
  EXPECT_GT(reached, 0.8);  // 0.91 of the test labels are right
  EXPECT_LT(reached, 0.91 + 0.04);
}

TEST_F(DataTraining, ASmallBertLearnsATsvAsFarAsItsLabelsAllow) {
  write_vocab();
  write_sentences("train.tsv", 2000, 0.1, 1);
  write_sentences("test.tsv", 1000, 0.1, 2);
  job::Job job;
  job.name = "bert";
  job.model = {.name = "bert_base",
               .classes = 4,
               .dropout = 0,
               .width = 32,
               .layers = 2,
               .heads = 4,
               .mlp = 64,
               .vocabulary = 100,
               .tokens = 32};
  job.data.kind = job::DataKind::TsvText;
  job.data.train = path("train.tsv");
  job.data.test = path("test.tsv");
  job.data.vocab = path("vocab.txt");
  job.batch = 20;
  job.epochs = 3;
  use_adam(job, 2e-3);
  const double reached = accuracy(job);
  EXPECT_GT(reached, 0.89);  // 0.925 of the test labels are right
  EXPECT_LT(reached, 0.925 + 0.025);
}

TEST_F(DataTraining, AClassifierLearnsATsvAsFarAsItsLabelsAllow) {
  write_vocab();
  write_sentences("train.tsv", 3000, 0.1, 1);
  write_sentences("test.tsv", 1000, 0.1, 2);
  job::Job job;
  job.name = "text";
  job.model = {.name = "bag_of_tokens", .classes = 4, .width = 16, .vocabulary = 100, .tokens = 48};
  job.data.kind = job::DataKind::TsvText;
  job.data.train = path("train.tsv");
  job.data.test = path("test.tsv");
  job.data.vocab = path("vocab.txt");
  job.batch = 20;
  job.epochs = 6;
  job.optimizer = {.lr = 1, .momentum = 0.9};
  job.eval.every_epochs = 0;
  const double reached = accuracy(job);
  EXPECT_GT(reached, 0.90);  // 0.925 of the test labels are right
  EXPECT_LT(reached, 0.925 + 0.025);

  // The same from two stages, and from two replicas.
  job.steps = 20;
  const RunResult alone = run(job);
  job::Job staged = job;
  staged.parallel.mode = job::Mode::OneFOneB;
  staged.parallel.placement = "0:0.0:1";
  staged.parallel.microbatches = 1;
  EXPECT_EQ(largest_difference(run(staged).state, alone.state), 0);
  job::Job replicated = job;
  replicated.parallel.placement = "0:0-1";
  EXPECT_LT(largest_difference(run(replicated).state, alone.state), 1e-6);
}

}  // namespace
}  // namespace millrace::runtime
