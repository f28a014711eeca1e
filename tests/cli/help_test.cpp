// That the program explains itself.
#include <gmock/gmock.h>

#include "cli/command_runner.h"

namespace millrace::cli {
namespace {

using testing::HasSubstr;

class Help : public CommandTest {
 protected:
  std::string printed(const std::vector<std::string>& arguments) const {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(outcome.err, "");
    return outcome.out;
  }
};

TEST_F(Help, NamesEveryCommand) {
  const std::string text = printed({"--help"});
  for (const char* word : {"train", "bench", "schedule", "profile", "cluster", "plan", "keys", "--help", "--version"})
    EXPECT_THAT(text, HasSubstr(word));
}

TEST_F(Help, OfTrainNamesEveryOptionAndWhatIsWritten) {
  const std::string text = printed({"train", "--help"});
  for (const char* word : {"JOB", "--set", "KEY=VALUE", "--out", "runs/", "--overwrite", "--json", "millrace keys",
                           "job.yaml", "metrics.jsonl", "model.safetensors", "summary.json", "trace.json"}) {
    EXPECT_THAT(text, HasSubstr(word));
  }
}

TEST_F(Help, OfBenchNamesEveryOption) {
  const std::string text = printed({"bench", "--help"});
  for (const char* word : {"JOB", "--set", "KEY=VALUE", "--warmup", "=2", "--layers", "--json"}) {
    EXPECT_THAT(text, HasSubstr(word));
  }
}

TEST_F(Help, KeysAreListedWithDefaultsAndChoices) {
  EXPECT_THAT(printed({"keys", "--help"}), HasSubstr("key"));
  const std::string text = printed({"keys"});
  for (const char* word : {"batch", "steps", "threads", "seed", "device", "precision", "model.name", "resnet_small",
                           "optimizer.decoupled", "schedule.milestones", "loss.label_smoothing", "fp32"}) {
    EXPECT_THAT(text, HasSubstr(word));
  }
}

TEST_F(Help, VersionIsPrinted) {
  EXPECT_THAT(printed({"--version"}), testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

}  // namespace
}  // namespace millrace::cli
