// Transformers give the same numbers wherever they are cut, with dropout on.
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
    for (int stages : {2, 3}) {
      for (const job::Mode mode : {job::Mode::OneFOneB, job::Mode::GPipe}) {
        SCOPED_TRACE(testing::Message() << stages << " stages, mode " << static_cast<int>(mode));
        job::Job cut = job;
        cut.parallel.mode = mode;
        cut.parallel.placement = straight(stages);
        const RunResult many = run(cut);
        EXPECT_EQ(many.losses, alone.losses);
        EXPECT_EQ(largest_difference(many.state, alone.state), 0);
        for (const auto& [sample, times] : many.seen) EXPECT_GE(times, 1) << sample;
      }
    }
    job::Job replicated = job;
    replicated.parallel.placement = "0:0-1";
    EXPECT_LT(largest_difference(run(replicated).state, alone.state), 1e-6);
  }
};

TEST_F(Transformers, AVisionTransformerInStagesIsTheOneOfOneWorker) { expect_one_worker(vit_job()); }

TEST_F(Transformers, BertInStagesIsTheOneOfOneWorker) { expect_one_worker(bert_job()); }

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
