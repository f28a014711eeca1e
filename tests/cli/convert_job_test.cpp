// millrace convert job, as a user starts it.
#include <gmock/gmock.h>

#include "cli/command_runner.h"

namespace millrace::cli {
namespace {

using testing::HasSubstr;

class ConvertJob : public CommandTest {};

TEST_F(ConvertJob, WritesAJobThatIsTrainedWhenMadeSmall) {
  write("theirs.yaml",
        "dist_args: {pipe_len_at_the_beginning: 2}\n"
        "pipetransformer_args: {num_chunks_of_micro_batches: 2, b_freeze: True}\n"
        "dataset_args: {dataset: cifar10}\n"
        "optimizer_args: {batch_size: 8, epochs: 2, warmup_steps: 0}\n");
  const Outcome converted = run({"convert", "job", "theirs.yaml", "ours.yaml", "--nodes", "1", "--devices", "2"});
  ASSERT_EQ(converted.exit_code, 0) << converted.err;
  EXPECT_THAT(converted.out, HasSubstr("ours.yaml written"));
  const std::string job = read("ours.yaml");
  EXPECT_THAT(job, HasSubstr("# From PipeTransformer's theirs.yaml."));
  EXPECT_THAT(job, HasSubstr("placement: \"0:0.0:1\""));
  const Outcome trained = run({"train", "ours.yaml", "--out", "run"},
                              {"data.kind=generated", "data.train=", "data.test=", "data.train_samples=16",
                               "data.mean=", "data.std=", "data.train_transform.kind=auto",
                               "data.test_transform.kind=auto", "model.image_size=16", "model.width=8", "model.heads=2",
                               "model.mlp=16", "model.layers=2", "device=reference", "threads=1"});
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
}

TEST_F(ConvertJob, RefusesWhatItDoesNotKnowAndWritesNothing) {
  write("theirs.yaml", "optimizer_args: {batchsize: 8}\n");
  const Outcome outcome = run({"convert", "job", "theirs.yaml", "ours.yaml"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err,
              HasSubstr("theirs.yaml:1: PipeTransformer has no key \"batchsize\"; did you mean \"batch_size\"?"));
  EXPECT_FALSE(std::filesystem::exists(path("ours.yaml")));
}

// The other conversions still say what they miss.
TEST_F(ConvertJob, PicturesNeedADestinationAndAKind) {
  const Outcome nowhere = run({"convert", "pictures"});
  EXPECT_EQ(nowhere.exit_code, 2);
  EXPECT_THAT(nowhere.err, HasSubstr("DESTINATION is required"));
  const Outcome as_what = run({"convert", "pictures", "set"});
  EXPECT_EQ(as_what.exit_code, 2);
  EXPECT_THAT(as_what.err, HasSubstr("--to is required"));
}

}  // namespace
}  // namespace millrace::cli
