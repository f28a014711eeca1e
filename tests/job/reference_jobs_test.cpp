// The files in jobs/reference/ are the published experiments with convolutional networks, one file each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <stdexcept>

#include "millrace/job/placement.h"
#include "millrace/job/reader.h"

namespace millrace::job {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::ThrowsMessage;

enum Published { kFp32, kFp16 };

struct Experiment {
  std::string id;
  std::string model;
  Mode mode;
  std::string placement;
  std::string stage_weights;
  bool static_scheduling;
  int64_t batch;
  Published precision;
};

const std::vector<Experiment> kExperiments{
    {"pd_alexnet_dp", "alexnet", Mode::Dp, "0:0-7", "", true, 2048, kFp32},
    {"pd_alexnet_pp", "alexnet", Mode::PipeDream, "0:0-6.0:7", "", true, 256, kFp32},
    {"pd_vgg16_dp", "vgg16", Mode::Dp, "0:0-7", "", true, 512, kFp32},
    {"pd_vgg16_pp", "vgg16", Mode::PipeDream, "0:0-6.0:7", "", true, 64, kFp32},
    {"of_rn50_dp", "resnet50", Mode::Dp, "0:0-7,1:0-7", "", true, 1024, kFp32},
    {"of_rn50_ssp1", "resnet50", Mode::Ssp, "0:0-7,1:0-7", "", true, 1024, kFp32},
    {"of_rn50_ssp_1_30", "resnet50", Mode::Ssp, "0:0-7,1:0-7.0:0-7,1:0-7", "1:30", true, 1024, kFp32},
    {"of_rn50_ssp_1_10", "resnet50", Mode::Ssp, "0:0-7,1:0-7.0:0-7,1:0-7", "1:10", true, 1024, kFp32},
    {"of_rn50_ssp_1_27_false", "resnet50", Mode::Ssp, "0:0-7,1:0-7.0:0-7,1:0-7", "1:27", false, 1024, kFp32},
    {"of_rn50_ssp_1_27_true", "resnet50", Mode::Ssp, "0:0-7,1:0-7.0:0-7,1:0-7", "1:27", true, 1024, kFp32},
    {"of_vgg_dp_8r_b32", "vgg16", Mode::Dp, "0:0-7", "", true, 256, kFp32},
    {"of_vgg_dp_1r_b32", "vgg16", Mode::Dp, "0:0", "", true, 32, kFp32},
    {"of_vgg_ssp_8r_b32", "vgg16", Mode::Ssp, "0:0-6.0:7", "11:7", true, 224, kFp32},
    {"of_vgg_dp_8r_b28", "vgg16", Mode::Dp, "0:0-7", "", true, 224, kFp32},
    {"of_vgg_ssp_8r_b28", "vgg16", Mode::Ssp, "0:0-6.0:7", "11:7", true, 196, kFp32},
    {"of_alexnet_dp_8r_b256", "alexnet", Mode::Dp, "0:0-7", "", true, 2048, kFp32},
    {"of_alexnet_dp_1r_b256", "alexnet", Mode::Dp, "0:0", "", true, 256, kFp32},
    {"of_alexnet_ssp_8r_b256_10", "alexnet", Mode::Ssp, "0:0-6.0:7", "10:1", true, 1792, kFp32},
    {"of_alexnet_ssp_8r_b256_10_false", "alexnet", Mode::Ssp, "0:0-6.0:7", "10:1", false, 1792, kFp32},
    {"of_alexnet_ssp_8r_b256_3", "alexnet", Mode::Ssp, "0:0-6.0:7", "3:1", true, 1792, kFp32},
    {"of_alexnet_ssp_8r_b256_3_false", "alexnet", Mode::Ssp, "0:0-6.0:7", "3:1", false, 1792, kFp32},
    {"of_rn50_fp16_1", "resnet50", Mode::Dp, "0:0", "", true, 256, kFp16},
    {"of_rn50_fp16_8", "resnet50", Mode::Dp, "0:0-7", "", true, 2048, kFp16},
    {"of_rn50_fp16_16", "resnet50", Mode::Dp, "0:0-7,1:0-7", "", true, 4096, kFp16},
    {"of_rn50_fp16_32", "resnet50", Mode::Dp, "0:0-7,1:0-7,2:0-7,3:0-7", "", true, 8192, kFp16},
};

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
    EXPECT_EQ(job.model.classes, 1000);
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
    EXPECT_DOUBLE_EQ(job.optimizer.lr, resnet ? 0.768 / (8 * 96) * job.batch : 0.01);
    EXPECT_EQ(job.optimizer.momentum, resnet ? 0.875 : 0.9);
    EXPECT_EQ(job.optimizer.weight_decay, resnet ? 1.0 / 32768 : 5e-5);
    EXPECT_EQ(job.loss.label_smoothing, resnet ? 0.1 : 0.0);
    EXPECT_EQ(job.schedule.kind, resnet ? Decay::Cosine : Decay::Constant);
    EXPECT_EQ(job.schedule.warmup_epochs, resnet ? 5 : 0);
    EXPECT_EQ(job.epochs, resnet ? 90 : 1);
  }
}

TEST(ReferenceJobs, AreReadAsTheyAreOnceTheirPrecisionIsBuilt) {
  for (const Experiment& experiment : kExperiments) {
    SCOPED_TRACE(experiment.id);
    const auto reading = [&] { read_job(path_of(experiment), {}); };
    if (experiment.precision == kFp16) {
      EXPECT_THAT(reading, ThrowsMessage<std::invalid_argument>(HasSubstr("precision fp16 is not built yet")));
    } else {
      EXPECT_NO_THROW(reading());
    }
  }
}

}  // namespace
}  // namespace millrace::job
