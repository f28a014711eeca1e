// The files in jobs/ are read by scripts and written about in the README.
#include <gtest/gtest.h>

#include <filesystem>

#include "millrace/job/reader.h"

namespace millrace::job {
namespace {

Job shipped(const std::string& name) {
  return read_job(std::string(MILLRACE_SOURCE_DIR) + "/jobs/" + name + ".yaml", {});
}

TEST(ShippedJobs, EachIsValidAndNamedLikeItsFile) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(MILLRACE_SOURCE_DIR) + "/jobs")) {
    if (entry.is_directory()) continue;
    EXPECT_EQ(read_job(entry.path().string(), {}).name, entry.path().stem().string());
    ++count;
  }
  EXPECT_GE(count, 4);
}

TEST(ShippedJobs, TheLargeModelsTrainOnSyntheticImagesOfImageNetSize) {
  for (const auto& [name, batch] : {std::pair("alexnet", 128), std::pair("vgg16", 16), std::pair("resnet50", 16)}) {
    const Job job = shipped(name);
    EXPECT_EQ(job.model.name, name);
    EXPECT_EQ(job.batch, batch);
    EXPECT_EQ(job.steps, 20);
    EXPECT_EQ(job.model.classes, 1000);
    EXPECT_EQ(job.model.image_size, 224);
    EXPECT_EQ(job.data.kind, DataKind::Synthetic);
  }
}

TEST(ShippedJobs, ResNet50HasItsPublishedHyperParameters) {
  const Job job = shipped("resnet50");
  EXPECT_DOUBLE_EQ(job.optimizer.lr, 0.768 / 768 * 16);
  EXPECT_EQ(job.optimizer.momentum, 0.875);
  EXPECT_EQ(job.optimizer.weight_decay, 1.0 / 32768);
  EXPECT_EQ(job.loss.label_smoothing, 0.1);
  EXPECT_EQ(job.schedule.kind, Decay::Cosine);
}

}  // namespace
}  // namespace millrace::job
