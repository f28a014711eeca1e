// The files in jobs/reference/ are the published experiments, one file each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <stdexcept>

#include "millrace/job/placement.h"
#include "millrace/job/reader.h"
#include "millrace/plan/published.h"

namespace millrace::job {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::ThrowsMessage;

enum PublishedPrecision { kFp32, kFp16 };

struct Experiment {
  std::string id;
  std::string model;
  Mode mode;
  std::string placement;
  std::string stage_weights;
  bool static_scheduling;
  int64_t batch;
  PublishedPrecision precision;
};

const std::vector<Experiment> kExperiments = [] {
  std::vector<Experiment> all;
  for (const plan::Published& row : plan::published_experiments()) {
    all.push_back({row.id, row.model, row.mode, row.placement, row.stage_weights, row.static_scheduling,
                   plan::job_of(row).batch, row.half ? kFp16 : kFp32});
  }
  return all;
}();

const fs::path kFolder = fs::path(MILLRACE_SOURCE_DIR) / "jobs/reference";

std::string path_of(const Experiment& experiment) { return kFolder / (experiment.id + ".yaml"); }

std::string text_of(const Experiment& experiment) {
  std::ifstream file(path_of(experiment));
  return {std::istreambuf_iterator<char>(file), {}};
}

// As it is, or in fp32 until fp16 is built.
Job read(const Experiment& experiment) {
  return read_job(path_of(experiment), experiment.precision == kFp16 ? std::vector<std::string>{"precision=fp32"}
                                                                     : std::vector<std::string>());
}

TEST(ReferenceJobs, EveryExperimentHasItsFileAndNoOtherIsThere) {
  std::set<std::string> wanted, found;
  for (const Experiment& experiment : kExperiments) wanted.insert(experiment.id + ".yaml");
  for (const auto& entry : fs::directory_iterator(kFolder)) found.insert(entry.path().filename());
  EXPECT_EQ(found, wanted);
}

TEST(ReferenceJobs, AgreeWithWhatWasPublished) {
  for (const Experiment& experiment : kExperiments) {
    SCOPED_TRACE(experiment.id);
    const Job job = read(experiment);
    EXPECT_EQ(job.name, experiment.id);
    EXPECT_EQ(job.batch, experiment.batch);
    EXPECT_EQ(job.model.name, experiment.model);
    EXPECT_EQ(job.model.classes, experiment.model == "vit_b_16" ? 100 : 1000);
    EXPECT_EQ(job.model.image_size, 224);
    EXPECT_EQ(job.data.kind, DataKind::Synthetic);
    EXPECT_EQ(job.parallel.mode, experiment.mode);
    EXPECT_EQ(job.parallel.placement, experiment.placement);
    EXPECT_EQ(job.parallel.stage_weights, experiment.stage_weights);
    EXPECT_EQ(job.parallel.static_scheduling, experiment.static_scheduling);
    EXPECT_EQ(job.parallel.multi_buffer, experiment.static_scheduling) << "one switch for both when published";
    EXPECT_EQ(job.parallel.replicas, experiment.mode == Mode::PipeDream ? Replicas::RoundRobin : Replicas::Split);
    if (job.parallel.replicas == Replicas::Split) {
      EXPECT_EQ(job.batch % parse_placement(job.parallel.placement)[0].size(), 0u);
    }
    EXPECT_THAT(text_of(experiment), HasSubstr("\n# Published: "));
  }
}

TEST(ReferenceJobs, HaveTheHyperParametersOfTheirModel) {
  for (const Experiment& experiment : kExperiments) {
    SCOPED_TRACE(experiment.id);
    const Job job = read(experiment);
    const bool resnet = experiment.model == "resnet50";
    if (experiment.model == "vit_b_16") {
      EXPECT_EQ(job.optimizer.lr, 0.1);
      EXPECT_EQ(job.schedule.kind, Decay::Cosine);
      EXPECT_EQ(job.epochs, 10);
      EXPECT_EQ(job.elastic.freeze, experiment.id == "pt_vit_all" ? Freeze::Gradient : Freeze::Off);
      continue;
    }
    EXPECT_DOUBLE_EQ(job.optimizer.lr, resnet ? 0.768 / (8 * 96) * job.batch : 0.01);
    EXPECT_EQ(job.optimizer.momentum, resnet ? 0.875 : 0.9);
    EXPECT_EQ(job.optimizer.weight_decay, resnet ? 1.0 / 32768 : 5e-5);
    EXPECT_EQ(job.loss.label_smoothing, resnet ? 0.1 : 0.0);
    EXPECT_EQ(job.schedule.kind, resnet ? Decay::Cosine : Decay::Constant);
    EXPECT_EQ(job.schedule.warmup_epochs, resnet ? 5 : 0);
    EXPECT_EQ(job.epochs, resnet ? 90 : 1);
  }
}

TEST(ReferenceJobs, AreReadAsTheyAre) {
  for (const Experiment& experiment : kExperiments) {
    SCOPED_TRACE(experiment.id);
    const Job job = read_job(path_of(experiment), {});
    EXPECT_EQ(job.precision, experiment.precision == kFp16 ? Precision::Fp16 : Precision::Fp32);
  }
}

}  // namespace
}  // namespace millrace::job
