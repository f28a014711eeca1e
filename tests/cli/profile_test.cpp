// What `millrace profile` prints and writes.
#include <gmock/gmock.h>

#include "cli/command_runner.h"
#include "cli/tiny_job.h"

namespace millrace::cli {
namespace {

using testing::HasSubstr;

class Profile : public CommandTest {
 protected:
  Profile() { write("job.yaml", tiny_job()); }
  void expect_refused(std::vector<std::string> arguments, const std::string& part) const {
    arguments.insert(arguments.begin(), {"profile", "job.yaml"});
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr(part));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_EQ(files(), std::set<std::string>{"job.yaml"});
  }
};

TEST_F(Profile, WritesOneFileAndPrintsATable) {
  const Outcome outcome = run({"profile", "job.yaml", "--repeats", "3"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* part : {"operator", "F ms", "I ms", "W ms", "algorithm", "layer1.0.conv1", "batch_norm", "sum",
                           "8 samples a micro-batch", "measured without instruments", "written: profile.json"}) {
    EXPECT_THAT(outcome.out, HasSubstr(part));
  }
  EXPECT_EQ(files(), (std::set<std::string>{"job.yaml", "profile.json"}));
  const nlohmann::json profile = json("profile.json");
  EXPECT_EQ(profile.at("model"), "resnet_small");
  EXPECT_EQ(profile.at("rows"), 8);
  EXPECT_GT(profile.at("step_s").get<double>(), 0);
  EXPECT_GT(profile.at("operators").size(), 10u);
}

TEST_F(Profile, SeveralSizesHaveAFileEach) {
  const Outcome outcome = run({"profile", "job.yaml", "--repeats", "1", "--rows", "2, 4", "-o", "costs.json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(files(), (std::set<std::string>{"job.yaml", "costs-2.json", "costs-4.json"}));
  EXPECT_EQ(json("costs-2.json").at("rows"), 2);
  EXPECT_EQ(json("costs-4.json").at("rows"), 4);
}

TEST_F(Profile, MistakesAreOneLine) {
  expect_refused({"--rows", "8,"}, "--rows \"8,\": \"\" is no number of samples");
  expect_refused({"--rows", "0"}, "\"0\" is no number");
  expect_refused({"--rows", "8,x"}, "\"x\" is no number");
  expect_refused({"--rows", "8,8"}, "8 is given twice");
  expect_refused({"--repeats", "0"}, "--repeats");
  expect_refused({"-o", ""}, "the name is empty");
  expect_refused({"-o", "missing/profile.json"}, "missing");
  expect_refused({"--set", "batch=1x"}, "batch");
}

}  // namespace
}  // namespace millrace::cli
