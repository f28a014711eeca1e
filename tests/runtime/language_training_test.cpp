// Small transformers learn from files what their making allows: a language model the entropy of its tokens, a reader
// where the answer is.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "runtime/training_harness.h"
#include "state/temporary_folder.h"

namespace millrace::runtime {
namespace {

class LanguageTraining : public state::TemporaryFolder {
 protected:
  static constexpr int kVocabulary = 24, kTokens = 32;
  static constexpr double kSurprise = 0.2;

  void SetUp() override {
    TemporaryFolder::SetUp();
    if (!kFast) GTEST_SKIP() << "too slow without optimised kernels";
  }

  // A token follows from the one before the last, but for every fifth, which is drawn: one has to look back.
  void write_tokens(const std::string& name, int count, unsigned seed) {
    std::mt19937 dice(seed);
    std::ofstream file(path(name), std::ios::binary);
    unsigned before = 1, last = 2;
    for (int i = 0; i < count; ++i) {
      const bool drawn = std::uniform_real_distribution<double>()(dice) < kSurprise;
      const unsigned next = drawn ? dice() % kVocabulary : (before * 7 + 3) % kVocabulary;
      file.put(static_cast<char>(next));
      file.put(0);
      before = last;
      last = next;
    }
  }
  // Of a token, in nats, on average over a sample: of the first label the token that it follows from is not seen.
  static double entropy() {
    const double other = kSurprise / kVocabulary, likely = 1 - kSurprise + other;
    const double seen = -likely * std::log(likely) - (kVocabulary - 1) * other * std::log(other);
    return ((kTokens - 1) * seen + std::log(kVocabulary)) / kTokens;
  }

  job::Job gpt_job() {
    write_tokens("train.bin", 40'000, 1);
    write_tokens("test.bin", 8'000, 2);
    job::Job job;
    job.name = "gpt";
    job.model = {.name = "gpt2",
                 .dropout = 0,
                 .width = 48,
                 .layers = 2,
                 .heads = 4,
                 .mlp = 96,
                 .vocabulary = kVocabulary,
                 .tokens = kTokens};
    job.data.kind = job::DataKind::TokenFile;
    job.data.train = path("train.bin");
    job.data.test = path("test.bin");
    job.batch = 16;
    job.epochs = 8;
    job.seed = 3;
    job.optimizer.kind = job::Algorithm::AdamW;
    job.optimizer.lr = 4e-3;
    job.optimizer.beta2 = 0.98;
    job.optimizer.clip_norm = 1;
    job.schedule.kind = job::Decay::Linear;
    job.schedule.warmup_steps = 40;
    job.eval.every_epochs = 0;
    return job;
  }

  // Paragraphs of common words in which one or two stand for an answer, between words that lead to it.
  void write_questions(const std::string& name, int count, unsigned seed) {
    std::mt19937 dice(seed);
    nlohmann::json paragraphs = nlohmann::json::array();
    for (int i = 0; i < count; ++i) {
      std::string context, answer;
      size_t start = 0;
      const unsigned words = 8 + dice() % 12, at = 1 + dice() % (words - 2);
      for (unsigned word = 0; word < words; ++word) {
        if (word > 0) context += ' ';
        if (word == at) {
          start = context.size();
          answer = "name" + std::to_string(dice() % 5);
          if (dice() % 2 == 0) answer += " name" + std::to_string(dice() % 5);
          context += answer;
        } else {
          context += "word" + std::to_string(dice() % 20);
        }
      }
      nlohmann::json question{{"id", name + std::to_string(i)},
                              {"question", "who is it"},
                              {"answers", {{{"text", answer}, {"answer_start", start}}}}};
      paragraphs.push_back({{"context", context}, {"qas", {question}}});
    }
    std::ofstream(path(name)) << nlohmann::json{{"data", {{{"paragraphs", paragraphs}}}}};
  }

  job::Job squad_job() {
    std::ofstream vocab(path("vocab.txt"));
    vocab << "[PAD]\n[UNK]\n[CLS]\n[SEP]\nwho\nis\nit\nword\nname\n";
    for (int i = 0; i < 20; ++i) vocab << "##" << i << '\n';
    vocab.close();
    write_questions("train.json", 1200, 1);
    write_questions("test.json", 150, 2);
    job::Job job;
    job.name = "squad";
    job.model = {.name = "bert_base",
                 .dropout = 0,
                 .width = 32,
                 .layers = 2,
                 .heads = 4,
                 .mlp = 64,
                 .vocabulary = 32,
                 .tokens = 40,
                 .head = job::Head::Span};
    job.data.kind = job::DataKind::Squad;
    job.data.train = path("train.json");
    job.data.test = path("test.json");
    job.data.vocab = path("vocab.txt");
    job.data.doc_stride = 10;
    job.data.max_question = 8;
    job.batch = 16;
    job.epochs = 8;
    job.seed = 3;
    job.optimizer.kind = job::Algorithm::AdamW;
    job.optimizer.lr = 3e-3;
    job.optimizer.clip_norm = 1;
    job.schedule.kind = job::Decay::Linear;
    job.schedule.warmup_steps = 30;
    job.eval.every_epochs = 0;
    return job;
  }
};

TEST_F(LanguageTraining, ALanguageModelLearnsATokenFileUpToItsEntropy) {
  const RunResult done = run(gpt_job());
  ASSERT_TRUE(done.result.evaluation);
  const double perplexity = std::exp(done.result.evaluation->loss()), floor = std::exp(entropy());
  RecordProperty("perplexity", std::to_string(perplexity));
  RecordProperty("floor", std::to_string(floor));
  EXPECT_LT(perplexity, 1.1 * floor);
  EXPECT_GT(perplexity, 0.96 * floor);  // no token is known from elsewhere
}

TEST_F(LanguageTraining, AReaderLearnsWhereAnswersAre) {
  job::Job job = squad_job();
  const RunResult done = run(job);
  ASSERT_TRUE(done.result.evaluation);
  const auto& [exact, f1, third, fourth] = done.result.evaluation->figures;
  RecordProperty("exact_match", std::to_string(exact));
  RecordProperty("f1", std::to_string(f1));
  EXPECT_GT(exact, 90);
  EXPECT_LE(exact, f1);
  EXPECT_LE(f1, 100);

  // The same figures from stages and replicas: what each of them scored comes together.
  job.steps = 25;
  const Metrics alone = *run(job).result.evaluation;
  EXPECT_LT(alone.figures[0], exact);
  for (const char* placement : {"0:0.0:1", "0:0-1", "0:0.0:1-3"}) {
    job.parallel.mode = std::string(placement) == "0:0-1" ? job::Mode::Dp : job::Mode::GPipe;
    job.parallel.placement = placement;
    job.parallel.microbatches = 1;
    const Metrics many = *run(job).result.evaluation;
    EXPECT_EQ(many.rows, alone.rows) << placement;
    EXPECT_NEAR(many.figures[0], alone.figures[0], 3) << placement;  // AdamW makes much of little differences
    EXPECT_NEAR(many.figures[1], alone.figures[1], 3) << placement;
    if (std::string(placement) == "0:0.0:1") {
      EXPECT_EQ(many.figures, alone.figures);
    }
  }
}

}  // namespace
}  // namespace millrace::runtime
