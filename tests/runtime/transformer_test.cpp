// Transformers give the same numbers wherever they are cut, with dropout, clipping and tied embeddings on.
#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "runtime/training_harness.h"
#include "state/temporary_folder.h"

namespace millrace::runtime {
namespace {

job::Job vit_job() {
  job::Job job = small_job();
  job.model = small_vit(16, 12, 3);
  job.optimizer.lr = 0.02;
  return job;
}

// Reads and writes tokens by one table, which the first and the last stage have.
job::Job gpt_job() {
  job::Job job = small_job();
  job.model = {
      .name = "gpt2", .dropout = 0.1, .width = 12, .layers = 3, .heads = 2, .mlp = 20, .vocabulary = 40, .tokens = 9};
  job.data = {.kind = job::DataKind::Synthetic, .train_samples = 26};
  job.optimizer.kind = job::Algorithm::AdamW;
  job.optimizer.lr = 0.01;
  job.optimizer.clip_norm = 0.5;
  return job;
}

double norm_of(const std::map<std::string, state::Tensor>& tensors, const std::string& prefix = "") {
  double squares = 0;
  for (const auto& [name, tensor] : tensors) {
    if (!name.starts_with(prefix)) continue;
    for (float value : tensor.data) squares += double{value} * value;
  }
  return std::sqrt(squares);
}

class Transformers : public state::TemporaryFolder {
 protected:
  // Every attention looks at the tokens: all stages load them.
  job::Job bert_job() {
    std::ofstream vocab(path("vocab.txt"));
    vocab << "[PAD]\n[UNK]\n[CLS]\n[SEP]\n";
    for (int i = 0; i < 30; ++i) vocab << "w" << i << '\n';
    std::ofstream rows(path("train.tsv"));
    rows << "sentence\tlabel\n";
    std::mt19937 dice(3);
    for (int row = 0; row < 26; ++row) {
      for (unsigned word = 0, words = 1 + dice() % 9; word < words; ++word) rows << " w" << dice() % 30;
      rows << '\t' << dice() % 3 << '\n';
    }
    job::Job job = small_job();
    job.model = {.name = "bert_base",
                 .classes = 3,
                 .dropout = 0.1,
                 .width = 12,
                 .layers = 2,
                 .heads = 2,
                 .mlp = 20,
                 .vocabulary = 40,
                 .tokens = 8};
    job.data = {.kind = job::DataKind::TsvText, .train = path("train.tsv"), .vocab = path("vocab.txt")};
    job.optimizer.lr = 0.02;
    return job;
  }

  static void expect_one_worker(job::Job job) {
    job.parallel.microbatches = 2;
    const RunResult alone = run(job);
    for (int stages : {2, 3, 4}) {
      for (const job::Mode mode : {job::Mode::OneFOneB, job::Mode::GPipe}) {
        SCOPED_TRACE(testing::Message() << stages << " stages, mode " << static_cast<int>(mode));
        job::Job cut = job;
        cut.parallel.mode = mode;
        cut.parallel.placement = straight(stages);
        const RunResult many = run(cut);
        EXPECT_EQ(many.losses, alone.losses);
        EXPECT_TRUE(many.state == alone.state);
        for (const auto& [sample, times] : many.seen) EXPECT_GE(times, 1) << sample;
      }
    }
    // A key's bias has no gradient but rounding, of which AdamW would make whole steps.
    job.optimizer.kind = job::Algorithm::Sgd;
    job::Job replicated = job;
    replicated.parallel.placement = "0:0-1";
    EXPECT_LT(largest_difference(run(replicated).state, run(job).state), 1e-6);
  }
};

TEST_F(Transformers, AVisionTransformerInStagesIsTheOneOfOneWorker) { expect_one_worker(vit_job()); }

TEST_F(Transformers, BertInStagesIsTheOneOfOneWorker) { expect_one_worker(bert_job()); }

TEST_F(Transformers, Gpt2InStagesIsTheOneOfOneWorker) { expect_one_worker(gpt_job()); }

TEST_F(Transformers, EveryOptimizerInStagesIsTheOneOfOneWorker) {
  for (const job::Algorithm kind : {job::Algorithm::Sgd, job::Algorithm::AdamW, job::Algorithm::Lamb}) {
    SCOPED_TRACE(static_cast<int>(kind));
    job::Job job = gpt_job();
    job.optimizer.kind = kind;
    job.optimizer.layer_decay = 0.7;
    job.parallel.microbatches = 2;
    const RunResult alone = run(job);
    job.parallel.mode = job::Mode::OneFOneB;
    job.parallel.placement = straight(3);
    EXPECT_TRUE(run(job).state == alone.state);
  }
}

// One micro-batch: gradients are not summed before they are, and on one worker not kept.
TEST_F(Transformers, TiedEmbeddingsOfOneMicrobatchAreThoseOfOneWorker) {
  job::Job job = gpt_job();
  const RunResult alone = run(job);
  job.parallel.mode = job::Mode::GPipe;
  for (int stages : {2, 4}) {
    job.parallel.placement = straight(stages);
    EXPECT_TRUE(run(job).state == alone.state) << stages;
  }
}

// Without clipping a step follows its gradient within the backward pass, with it all steps come at the end.
TEST_F(Transformers, StepsWithinBackwardAreThoseAtItsEnd) {
  for (const job::Algorithm kind : {job::Algorithm::Sgd, job::Algorithm::AdamW, job::Algorithm::Lamb}) {
    job::Job job = vit_job();
    job.optimizer.kind = kind;
    job.optimizer.lr = 0.01;
    const RunResult within = run(job);
    job.optimizer.clip_norm = 1e6;  // never reached
    EXPECT_TRUE(run(job).state == within.state) << static_cast<int>(kind);
  }
}

TEST_F(Transformers, TiedEmbeddingsStayEqualOverStagesWithReplicas) {
  job::Job job = gpt_job();
  job.optimizer.kind = job::Algorithm::Sgd;
  job.parallel.microbatches = 2;
  const RunResult alone = run(job);
  job.parallel.mode = job::Mode::OneFOneB;
  for (const char* placement : {"0:0-1.0:2", "0:0.0:1-2", "0:0-1.0:2-3"}) {
    SCOPED_TRACE(placement);
    job.parallel.placement = placement;
    const auto process = comm::make_local_process();
    Training training(job, *process, {});
    training.run({});
    EXPECT_LT(largest_difference(training.state(), alone.state), 1e-6);
    // What each worker has of the table by itself.
    std::vector<std::vector<float>> tables;
    for (size_t w = 0; w < training.num_workers(); ++w) {
      Session& session = training.worker(w).session(0);
      state::State state;
      session.store(state);
      tables.push_back(state.params.at("transformer.wte.weight").data);
    }
    for (const std::vector<float>& table : tables) EXPECT_EQ(table, tables[0]);
  }
}

TEST_F(Transformers, ClippingIsByTheNormOfTheWholeModel) {
  job::Job job = gpt_job();
  job.optimizer.kind = job::Algorithm::Sgd;
  job.optimizer.weight_decay = 0;
  job.optimizer.clip_norm = 0;
  job.steps = 1;
  const auto gradients = run(job).state.velocity;  // after one step from zero
  const double norm = norm_of(gradients);
  ASSERT_LT(norm_of(gradients, "transformer.h.1."), 0.9 * norm);  // by its own norm a stage would clip less
  job.optimizer.clip_norm = norm / 3;
  job.parallel.mode = job::Mode::GPipe;
  for (const char* placement : {"0:0", "0:0.0:1", "0:0.0:1.0:2", "0:0-1.0:2"}) {
    SCOPED_TRACE(placement);
    job.parallel.placement = placement;
    const auto clipped = run(job).state.velocity;
    ASSERT_EQ(clipped.size(), gradients.size());
    for (const auto& [name, tensor] : clipped) {
      const std::vector<float>& whole = gradients.at(name).data;
      for (size_t i = 0; i < whole.size(); ++i) {
        ASSERT_NEAR(tensor.data[i], whole[i] / 3, 1e-5 * norm) << name;
      }
    }
  }
  job.optimizer.clip_norm = norm * 2;  // nothing to clip
  EXPECT_LT(std::abs(norm_of(run(job).state.velocity) / norm - 1), 1e-5);
}

TEST_F(Transformers, BlocksThatAreComputedAgainChangeNoBitAndTakeLessMemory) {
  for (job::Job job : {vit_job(), bert_job(), gpt_job()}) {
    SCOPED_TRACE(job.model.name);
    job.model.layers = 4;
    for (const char* placement : {"0:0", "0:0.0:1"}) {
      job.parallel.placement = placement;
      job.parallel.mode = job::Mode::OneFOneB;
      job.parallel.microbatches = 2;
      job.parallel.recompute = job::Recompute::Off;
      const RunResult kept = run(job);
      job.parallel.recompute = job::Recompute::Block;
      const RunResult again = run(job);
      EXPECT_TRUE(again.state == kept.state) << placement;
      EXPECT_EQ(again.losses, kept.losses);
      EXPECT_LT(again.planned_bytes, kept.planned_bytes);
    }
  }
}

TEST_F(Transformers, BlocksAreComputedAgainWhereMemoryIsShort) {
  job::Job job = gpt_job();
  job.model.layers = 6;
  job.steps = 2;
  const auto training_within = [&](size_t bytes) {
    const auto process = comm::make_local_process();
    Training training(job, *process, {.memory_bytes = bytes, .source = "the test"});
    return std::pair(training.remakes_blocks(), training.planned_bytes());
  };
  const auto [roomy, whole] = training_within(0);
  EXPECT_FALSE(roomy);
  const auto [short_of_memory, less] = training_within(whole - 1);
  EXPECT_TRUE(short_of_memory);
  EXPECT_LT(less, whole);
  job.parallel.recompute = job::Recompute::Off;
  EXPECT_THROW(training_within(whole - 1), std::invalid_argument);
}

TEST_F(Transformers, ADelayOfNothingIsNoDelay) {
  job::Job job = vit_job();
  const RunResult alone = run(job);
  job.parallel.mode = job::Mode::Ssp;
  job.parallel.placement = "0:0.0:1";
  job.parallel.versions = {1, 1};
  EXPECT_EQ(largest_difference(run(job).state, alone.state), 0);
}

}  // namespace
}  // namespace millrace::runtime
