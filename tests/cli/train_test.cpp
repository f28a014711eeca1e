// What `millrace train` leaves behind, and that it can be repeated and continued.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cstring>

#include "cli/command_runner.h"
#include "cli/tiny_job.h"

namespace millrace::cli {
namespace {

using testing::HasSubstr;

class Train : public CommandTest {
 protected:
  Train() { write("job.yaml", tiny_job()); }

  void train(const std::string& out, const std::vector<std::string>& sets = {}, const std::string& job = "job.yaml") {
    const Outcome outcome = run({"train", job, "--out", out}, sets);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  }
  std::string weights(const std::string& run_directory) const { return read(run_directory + "/model.safetensors"); }

  // The bytes of one tensor of a run's weights.
  std::string tensor(const std::string& run_directory, const std::string& name) const {
    const std::string bytes = weights(run_directory);
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
    const auto header = nlohmann::json::parse(bytes.substr(sizeof header_bytes, header_bytes));
    const size_t begin = header.at(name).at("data_offsets").at(0), end = header.at(name).at("data_offsets").at(1);
    return bytes.substr(sizeof header_bytes + header_bytes + begin, end - begin);
  }
};

TEST_F(Train, LeavesFiveFilesAndNothingElse) {
  train("run");
  EXPECT_EQ(files(), (std::set<std::string>{"job.yaml", "run", "run/job.yaml", "run/metrics.jsonl",
                                            "run/model.safetensors", "run/summary.json", "run/trace.json"}));
}

TEST_F(Train, SummaryHoldsWhatScriptsRelyOn) {
  train("run");
  const nlohmann::json summary = json("run/summary.json");
  EXPECT_GT(summary.at("samples_per_s").get<double>(), 0);
  EXPECT_GT(summary.at("step_ms").at("p50").get<double>(), 0);
  EXPECT_GT(summary.at("gflops").get<double>(), 0);
  EXPECT_GT(summary.at("peak_bytes").at("planned").get<int64_t>(), 100'000);
  EXPECT_GT(summary.at("peak_bytes").at("measured").get<int64_t>(), 100'000);
  EXPECT_GT(summary.at("loss").get<double>(), 0);
  EXPECT_EQ(summary.at("diverged"), false);
  EXPECT_GT(summary.at("accuracy").at("top1").get<double>(), 0);
  EXPECT_GE(summary.at("accuracy").at("top5"), summary.at("accuracy").at("top1"));
  EXPECT_LE(summary.at("accuracy").at("top5").get<double>(), 1);
  EXPECT_EQ(summary.at("samples"), 2 * 60);
  EXPECT_GT(summary.at("epoch_s").get<double>(), 0);
}

TEST_F(Train, AccuracyIsNullWhereNothingWasEvaluated) {
  train("run", {"data.test_samples=0"});
  EXPECT_TRUE(json("run/summary.json").at("accuracy").at("top1").is_null());
  EXPECT_TRUE(json("run/summary.json").at("accuracy").at("top5").is_null());
}

TEST_F(Train, StopsWhereTheLossIsNotFinite) {
  const Outcome outcome =
      run({"train", "job.yaml", "--out", "run"}, {"optimizer.lr=1e9", "optimizer.weight_decay=1e9", "steps=1000"});
  EXPECT_EQ(outcome.exit_code, 1);
  const nlohmann::json summary = json("run/summary.json");
  EXPECT_EQ(summary.at("diverged"), true);
  EXPECT_TRUE(summary.at("loss").is_null());
  const int64_t steps = summary.at("steps");
  EXPECT_LT(steps, 1000);
  EXPECT_THAT(outcome.err, HasSubstr("millrace: tiny: diverged at step " + std::to_string(steps) + " of 1000"));
  EXPECT_THAT(outcome.err, HasSubstr("optimizer.lr"));
  EXPECT_FALSE(exists("run/model.safetensors"));
  EXPECT_THAT(outcome.out, testing::Not(HasSubstr("peak memory")));
}

TEST_F(Train, PrintsASummaryTable) {
  const Outcome outcome = run({"train", "job.yaml", "--out", "run"});
  for (const char* row : {"samples/s", "peak memory", "loss", "test accuracy", "writing to run"}) {
    EXPECT_THAT(outcome.out, HasSubstr(row));
  }
  EXPECT_THAT(outcome.err, HasSubstr("epoch 2: test loss"));
}

TEST_F(Train, EveryStepIsOneRecordOfTheMetrics) {
  train("run");
  const auto records = steps("run");
  ASSERT_EQ(records.size(), 16u);
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].at("step"), i);
    EXPECT_DOUBLE_EQ(records[i].at("epoch").get<double>(), static_cast<double>(i + 1) / 8);
    EXPECT_TRUE(records[i].at("loss").is_number());
    EXPECT_EQ(records[i].at("lr"), 0.05);
  }
  EXPECT_THAT(read("run/metrics.jsonl"), HasSubstr("\"test_top5\""));
}

TEST_F(Train, EvaluatesAtMostOnceAStep) {
  const auto evaluations = [this](const std::string& run_directory) {
    const std::string text = read(run_directory + "/metrics.jsonl");
    int count = 0;
    for (size_t at = 0; (at = text.find("\"test_loss\"", at)) != std::string::npos; ++at) ++count;
    return count;
  };
  train("each_step", {"steps=5", "eval.every_epochs=0.001"});
  EXPECT_EQ(evaluations("each_step"), 5);
  train("second_step", {"steps=5", "eval.every_epochs=0.25"});
  EXPECT_EQ(evaluations("second_step"), 3);
  train("at_the_end", {"steps=5", "eval.every_epochs=0"});
  EXPECT_EQ(evaluations("at_the_end"), 1);
}

TEST_F(Train, TheWrittenJobGivesTheSameWeightsAgain) {
  train("first", {"seed=7", "optimizer.nesterov=true", "schedule.kind=cosine"});
  train("again", {}, "first/job.yaml");
  EXPECT_EQ(weights("first"), weights("again"));
  EXPECT_EQ(read("first/job.yaml"), read("again/job.yaml"));
}

TEST_F(Train, OneSeedIsOneResultToTheBit) {
  train("first", {"seed=3"});
  train("same", {"seed=3"});
  train("other", {"seed=4"});
  EXPECT_EQ(weights("first"), weights("same"));
  EXPECT_NE(weights("first"), weights("other"));
}

TEST_F(Train, CountsEverySampleOncePerEpoch) {
  train("below_a_batch", {"data.train_samples=5", "epochs=3"});
  EXPECT_EQ(json("below_a_batch/summary.json").at("samples"), 15);
  EXPECT_EQ(json("below_a_batch/summary.json").at("steps"), 3);
  train("with_a_rest", {"data.train_samples=33", "epochs=2"});
  EXPECT_EQ(json("with_a_rest/summary.json").at("samples"), 66);
  EXPECT_EQ(json("with_a_rest/summary.json").at("steps"), 10);
  train("in_parts", {"data.train_samples=33", "epochs=2", "parallel.microbatches=4"});
  EXPECT_EQ(json("in_parts/summary.json").at("samples"), 66);
  train("divides", {"data.train_samples=32", "epochs=2"});
  EXPECT_EQ(json("divides/summary.json").at("samples"), 64);
}

TEST_F(Train, SetWinsOverTheFileAndTheLastSetOverTheFirst) {
  train("run", {"batch=4", "steps=3", "batch=5", "optimizer.lr=0.25"});
  const nlohmann::json summary = json("run/summary.json");
  EXPECT_EQ(summary.at("batch"), 5);
  EXPECT_EQ(summary.at("steps"), 3);
  EXPECT_EQ(summary.at("samples"), 15);
  EXPECT_EQ(steps("run").at(0).at("lr"), 0.25);
  EXPECT_THAT(read("run/job.yaml"), HasSubstr("batch: 5\n"));
}

TEST_F(Train, ContinuesFromTheWeightsOfAnotherRun) {
  train("first", {"epochs=8", "seed=1"});
  train("more", {"steps=1", "seed=1", "model.init=first/model.safetensors"});
  const double at_first = steps("first").at(0).at("loss"), at_last = json("first/summary.json").at("loss");
  const double continued = steps("more").at(0).at("loss");
  ASSERT_LT(at_last, 0.4 * at_first);
  EXPECT_LT(continued, 0.5 * (at_first + at_last));
  EXPECT_LT(continued, 2 * at_last + 0.2);
}

TEST_F(Train, WeightsOfTheFileAreTakenToTheBit) {
  train("first", {"steps=2"});
  train("at_rest", {"steps=1", "optimizer.lr=0", "model.init=first/model.safetensors"});
  train("elsewhere", {"steps=1", "optimizer.lr=0"});
  EXPECT_EQ(tensor("first", "fc.weight"), tensor("at_rest", "fc.weight"));
  EXPECT_NE(tensor("first", "fc.weight"), tensor("elsewhere", "fc.weight"));
}

TEST_F(Train, NumbersItsRunsWhenNotToldWhereToWrite) {
  ASSERT_EQ(run({"train", "job.yaml", "--set", "steps=1"}).exit_code, 0);
  ASSERT_EQ(run({"train", "job.yaml", "--set", "steps=1"}).exit_code, 0);
  EXPECT_TRUE(exists("runs/tiny-1/summary.json"));
  EXPECT_TRUE(exists("runs/tiny-2/summary.json"));
}

TEST_F(Train, JsonHoldsTheSameSummary) {
  ASSERT_EQ(run({"train", "job.yaml", "--out", "run", "--json", "copy.json"}).exit_code, 0);
  EXPECT_EQ(read("copy.json"), read("run/summary.json"));
}

TEST_F(Train, JsonToADeviceLeavesTheDevice) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  const int reader = ::open(path("pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  const Outcome outcome = run({"train", "job.yaml", "--set", "steps=1", "--out", "run", "--json", "pipe"});
  std::string text(100'000, '\0');
  const ssize_t count = ::read(reader, text.data(), text.size());
  ::close(reader);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(text.substr(0, count < 0 ? 0 : static_cast<size_t>(count)), read("run/summary.json"));
  EXPECT_TRUE(std::filesystem::is_fifo(path("pipe")));
}

TEST_F(Train, OverwriteReplacesTheRun) {
  train("run", {"steps=2"});
  const std::string old = weights("run");
  write("run/notes.txt", "mine");
  const Outcome outcome = run({"train", "job.yaml", "--out", "run", "--overwrite", "--set", "steps=3"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(json("run/summary.json").at("steps"), 3);
  EXPECT_EQ(steps("run").size(), 3u);
  EXPECT_NE(weights("run"), old);
  EXPECT_EQ(read("run/notes.txt"), "mine");
}

TEST_F(Train, ARunCanGoOnInPlaceFromItsOwnWeights) {
  train("run", {"epochs=8"});
  const double last = json("run/summary.json").at("loss");
  const Outcome outcome =
      run({"train", "job.yaml", "--out", "run", "--overwrite"}, {"model.init=run/model.safetensors"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_LT(steps("run").at(0).at("loss").get<double>(), 2 * last + 0.2);
}

}  // namespace
}  // namespace millrace::cli
