// A training that is saved and gone on with.
#pragma once

#include "cli/mpi_runner.h"

namespace millrace::cli {

// A few milliseconds a step.
inline constexpr const char* kSteps = "steps=24";

class CheckpointTest : public CommandTest {
 protected:
  void SetUp() override { write("job.yaml", small_job()); }

  Outcome train(const std::string& out, std::vector<std::string> sets) {
    sets.emplace_back(kSteps);
    return run({"train", "job.yaml", "--out", out}, sets);
  }
  std::string weights(const std::string& out) const { return read(out + "/model.safetensors"); }

  // Steps on record, in order, each once.
  void expect_steps(const std::string& out, int64_t count) {
    std::vector<int64_t> found;
    for (const std::string& line : lines_of(read(out + "/metrics.jsonl"))) {
      const auto record = nlohmann::json::parse(line);
      if (record.contains("step")) found.push_back(record["step"]);
    }
    ASSERT_EQ(static_cast<int64_t>(found.size()), count);
    for (int64_t i = 0; i < count; ++i) EXPECT_EQ(found[static_cast<size_t>(i)], i);
  }
};

}  // namespace millrace::cli
