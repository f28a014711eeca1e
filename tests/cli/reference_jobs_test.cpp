// Every published experiment runs here when it is made small by --set alone, on its own placement.
#include <algorithm>

#include "cli/command_runner.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

class ReferenceJobs : public CommandTest {};

TEST_F(ReferenceJobs, RunWhenMadeSmall) {
  std::vector<fs::path> jobs;
  for (const auto& entry : fs::directory_iterator(fs::path(MILLRACE_SOURCE_DIR) / "jobs/reference")) {
    jobs.push_back(entry.path());
  }
  std::sort(jobs.begin(), jobs.end());
  ASSERT_FALSE(jobs.empty());
  for (const fs::path& job : jobs) {
    const std::string name = job.stem();
    const bool resnet = name.find("rn50") != std::string::npos, most = name.ends_with("_32");
    const bool vit = name.find("vit") != std::string::npos;
    std::vector<std::string> sets{std::string("model.name=") + (vit      ? "vit_b_16"
                                                                : resnet ? "resnet_small"
                                                                         : "alexnet_small"),
                                  std::string("model.image_size=") + (vit      ? "32"
                                                                      : resnet ? "8"
                                                                               : "24"),
                                  "model.classes=10",
                                  std::string("batch=") + (most || vit ? "32" : "16"),
                                  "steps=2",
                                  "data.train_samples=64",
                                  "threads=1",
                                  "device=reference",
                                  "precision=fp32"};
    if (vit) sets.insert(sets.end(), {"model.width=8", "model.heads=2", "model.mlp=16"});
    const Outcome outcome = run({"train", job.string(), "--out", name}, sets);
    EXPECT_EQ(outcome.exit_code, 0) << name << ": " << outcome.err;
    if (outcome.exit_code == 0) {
      EXPECT_EQ(json(name + "/summary.json").at("steps"), 2) << name;
    }
  }
}

}  // namespace
}  // namespace millrace::cli
