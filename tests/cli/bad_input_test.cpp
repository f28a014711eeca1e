// Mistakes of the user: one line that says what is wrong, the numbers and what to write instead, exit code 2, and
// nothing created.
#include <gmock/gmock.h>

#include <algorithm>

#include "cli/command_runner.h"
#include "cli/tiny_job.h"
#include "millrace/backend/cuda/cuda_backend.h"

namespace millrace::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class BadInput : public CommandTest {
 protected:
  BadInput() { write("job.yaml", tiny_job()); }

  std::string refused_set(const std::string& set) const {
    return refusal({"train", "job.yaml", "--out", "run"}, {set});
  }
  std::string refused_job(const std::string& added) const {
    write("job.yaml", tiny_job() + added);
    return refusal({"train", "job.yaml", "--out", "run"});
  }
  // Where a line added to the job is: 1 for the first.
  static std::string place(int added_line) {
    const std::string job = tiny_job();
    return "job.yaml:" + std::to_string(std::count(job.begin(), job.end(), '\n') + added_line) + ": ";
  }
};

TEST_F(BadInput, UnknownKeyIsNamedWithItsLineAndTheNearest) {
  EXPECT_THAT(refused_job("bacth: 4\n"), AllOf(HasSubstr(place(1)), HasSubstr("\"bacth\""), HasSubstr("\"batch\"")));
  EXPECT_THAT(refused_job("loss:\n  label_smothing: 0.1\n"),
              AllOf(HasSubstr(place(2)), HasSubstr("label_smothing"), HasSubstr("\"loss.label_smoothing\"")));
}

TEST_F(BadInput, MisspeltSetIsNamedWithTheNearest) {
  EXPECT_THAT(refused_set("optimzer.lr=0.1"), AllOf(HasSubstr("optimzer.lr"), HasSubstr("\"optimizer.lr\"")));
  EXPECT_THAT(refused_set("momentum=0.1"), HasSubstr("\"optimizer.momentum\""));
  EXPECT_THAT(refused_set("batch"), HasSubstr("--set key=value"));
}

TEST_F(BadInput, WrongTypesAreNamedWithAnExample) {
  EXPECT_THAT(refused_set("batch=many"),
              AllOf(HasSubstr("\"many\""), HasSubstr("whole number"), HasSubstr("batch=32")));
  EXPECT_THAT(refused_set("batch=1.5"), AllOf(HasSubstr("\"1.5\""), HasSubstr("whole number")));
  EXPECT_THAT(refused_set("optimizer.nesterov=maybe"), AllOf(HasSubstr("\"maybe\""), HasSubstr("true nor false")));
  EXPECT_THAT(refused_job("seed: [1, 2]\n"), AllOf(HasSubstr(place(1)), HasSubstr("not a list"), HasSubstr("seed: 1")));
}

TEST_F(BadInput, NumbersOutOfRangeAreNamedWithTheLimit) {
  EXPECT_THAT(refused_set("batch=0"), AllOf(HasSubstr("batch is 0"), HasSubstr("at least 1")));
  EXPECT_THAT(refused_set("batch=-4"), AllOf(HasSubstr("batch is -4"), HasSubstr("at least 1")));
  EXPECT_THAT(refused_set("optimizer.momentum=1"), AllOf(HasSubstr("momentum is 1"), HasSubstr("below 1")));
}

TEST_F(BadInput, NameThatWouldLeaveTheRunsIsRefused) {
  EXPECT_THAT(refusal({"train", "job.yaml"}, {"name=../elsewhere"}),
              AllOf(HasSubstr("\"../elsewhere\""), HasSubstr("without /"), HasSubstr("--out")));
}

TEST_F(BadInput, PartsThatDoNotDivideTheBatchAreRefusedWithOnesThatDo) {
  EXPECT_THAT(refused_set("parallel.microbatches=3"),
              AllOf(HasSubstr("batch is 8"), HasSubstr("microbatches 3"), HasSubstr("microbatches: 2 or 4")));
}

TEST_F(BadInput, UnknownModelIsRefusedWithTheKnownOnes) {
  EXPECT_THAT(refused_set("model.name=resnet_smal"),
              AllOf(HasSubstr("\"resnet_smal\""), HasSubstr("mean resnet_small?")));
  EXPECT_THAT(refused_set("model.name=transformer"), AllOf(HasSubstr("vgg16_bn"), HasSubstr("alexnet")));
}

TEST_F(BadInput, ADeviceThatIsNotThereIsRefusedWithWhatToDo) {
  if (backend::cuda_device_count() > 0) GTEST_SKIP() << "there is one";
  EXPECT_THAT(refused_set("device=cuda"), AllOf(HasSubstr("device: cuda"), HasSubstr("write device: cpu")));
}

TEST_F(BadInput, APrecisionThatTheDeviceHasNotIsRefused) {
  EXPECT_THAT(refused_set("precision=fp16"), AllOf(HasSubstr(std::string("precision is fp16 and device ") +
                                                             (MILLRACE_HAS_CPU ? "cpu," : "reference,")),
                                                   HasSubstr("device: cuda"), HasSubstr("precision: fp32")));
}

TEST_F(BadInput, ImageTooSmallForALayerNamesTheLayerAndTheNumbers) {
  const std::string line =
      refusal({"train", "job.yaml", "--out", "run"}, {"model.name=alexnet", "model.image_size=20"});
  EXPECT_THAT(line, AllOf(HasSubstr("alexnet"), HasSubstr("features.5"), HasSubstr("3x3"), HasSubstr("1x1"),
                          HasSubstr("larger image")));
}

TEST_F(BadInput, MoreMemoryThanTheMachineHasIsRefusedWithTheArithmetic) {
  write("vgg.yaml", std::string("batch: 100000\nsteps: 1\nmodel:\n  name: vgg16\ndevice: ") + kDevice + "\n");
  for (const char* command : {"train", "bench"}) {
    const auto before = files();
    const Outcome outcome = run({command, "vgg.yaml"});
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("vgg16 needs"), HasSubstr("activations "), HasSubstr(" + weights 528"),
                                   HasSubstr("this machine has"), HasSubstr("of 100000 samples would fit"),
                                   HasSubstr("parallel.microbatches")));
    EXPECT_EQ(files(), before);
    EXPECT_LT(outcome.seconds, 10);
    EXPECT_LT(outcome.peak_bytes, int64_t{400} << 20);
  }
}

// In parts of one sample the model fits; the batch that is loaded ahead does not.
TEST_F(BadInput, BatchTooLargeToLoadIsRefusedWithTheArithmetic) {
  const std::string line =
      refusal({"train", "job.yaml", "--out", "run"},
              {"batch=1000000", "parallel.microbatches=1000000", "model.image_size=512", "data.train_samples=1000000"});
  EXPECT_THAT(line,
              AllOf(HasSubstr("resnet_small needs"), HasSubstr("loading ahead 9000"), HasSubstr("this machine has"),
                    HasSubstr("write a smaller batch"), testing::Not(HasSubstr("microbatches"))));
}

TEST_F(BadInput, MissingJobFileIsNamed) {
  EXPECT_THAT(refusal({"train", "missing.yaml"}), HasSubstr("missing.yaml: no such job file"));
  EXPECT_THAT(refusal({"bench", "missing.yaml"}), HasSubstr("missing.yaml: no such job file"));
  EXPECT_THAT(refusal({"train", "."}), HasSubstr("is a directory"));
}

TEST_F(BadInput, JobThatIsNotYamlIsRefusedWithItsLine) {
  write("broken.yaml", "batch: 4\nmodel: {name\n");
  EXPECT_THAT(refusal({"train", "broken.yaml"}), AllOf(HasSubstr("broken.yaml:"), HasSubstr("not valid YAML")));
}

TEST_F(BadInput, OutputDirectoryThatIsAFileIsRefused) {
  write("file", "text");
  EXPECT_THAT(refusal({"train", "job.yaml", "--out", "file"}),
              AllOf(HasSubstr("output directory file"), HasSubstr("not a directory"), HasSubstr("--out")));
  EXPECT_THAT(refusal({"train", "job.yaml", "--out", "file/run"}), HasSubstr("not a directory"));
  EXPECT_EQ(read("file"), "text");
}

TEST_F(BadInput, OutputDirectoryThatCannotBeWrittenIsRefused) {
  // Even root creates nothing there.
  EXPECT_THAT(refusal({"train", "job.yaml", "--out", "/proc/run"}),
              AllOf(HasSubstr("output directory /proc/run"), HasSubstr("cannot be"), HasSubstr("--out")));
  if (::geteuid() == 0) return;
  std::filesystem::create_directory(path("locked"));
  std::filesystem::permissions(path("locked"), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  EXPECT_THAT(refusal({"train", "job.yaml", "--out", "locked/run"}),
              AllOf(HasSubstr("locked"), HasSubstr("Permission denied")));
}

TEST_F(BadInput, EmptyNamesAreRefused) {
  EXPECT_THAT(refusal({"train", "job.yaml", "--out", ""}), AllOf(HasSubstr("--out"), HasSubstr("name is empty")));
  EXPECT_THAT(refusal({"train", "job.yaml", "--out="}), HasSubstr("--out"));
  EXPECT_THAT(refusal({"train", "job.yaml", "--json", ""}), AllOf(HasSubstr("--json"), HasSubstr("name is empty")));
  EXPECT_THAT(refusal({"bench", "job.yaml", "--json", ""}), AllOf(HasSubstr("--json"), HasSubstr("name is empty")));
}

TEST_F(BadInput, OutputDirectoryThatHoldsARunIsLeftAsItIs) {
  ASSERT_EQ(run({"train", "job.yaml", "--out", "run", "--set", "steps=1"}).exit_code, 0);
  const std::string summary = read("run/summary.json"), weights = read("run/model.safetensors"),
                    metrics = read("run/metrics.jsonl");
  EXPECT_THAT(refusal({"train", "job.yaml", "--out", "run"}),
              AllOf(HasSubstr("output directory run"), HasSubstr("already holds a run"), HasSubstr("--overwrite")));
  // Nor does a job that cannot run take the old run with it.
  refusal({"train", "job.yaml", "--out", "run", "--overwrite", "--set", "model.name=alexnet"});
  EXPECT_EQ(read("run/summary.json"), summary);
  EXPECT_EQ(read("run/model.safetensors"), weights);
  EXPECT_EQ(read("run/metrics.jsonl"), metrics);
}

TEST_F(BadInput, JsonThatCannotBeWrittenIsFoundBeforeTraining) {
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"train", "job.yaml", "--out", "run"}, std::vector<std::string>{"bench", "job.yaml"}}) {
    for (const char* file : {"missing/record.json", ".", "/proc/record.json"}) {
      std::vector<std::string> arguments = command;
      arguments.insert(arguments.end(), {"--set", "steps=1", "--json", file});
      EXPECT_THAT(refusal(arguments), AllOf(HasSubstr(std::string("--json ") + file), HasSubstr("cannot be written"),
                                            HasSubstr("name another file")));
    }
  }
}

TEST_F(BadInput, JobThatCannotRunLeavesAnOldRecordAlone) {
  write("record.json", "old");
  refusal({"bench", "job.yaml", "--json", "record.json", "--set", "model.name=alexnet"});
  refusal({"train", "job.yaml", "--out", "run", "--json", "record.json", "--set", "model.name=alexnet"});
  EXPECT_EQ(read("record.json"), "old");
}

TEST_F(BadInput, FirstWeightsThatAreNotThereAreNamed) {
  EXPECT_THAT(refused_set("model.init=missing.safetensors"),
              AllOf(HasSubstr("model.init"), HasSubstr("\"missing.safetensors\"")));
  EXPECT_THAT(refused_set("model.init=."), AllOf(HasSubstr("model.init"), HasSubstr("is a directory")));
}

TEST_F(BadInput, FirstWeightsOfAnotherModelAreRefusedByName) {
  ASSERT_EQ(run({"train", "job.yaml", "--out", "first", "--set", "steps=1"}).exit_code, 0);
  std::filesystem::remove_all(root_ / "cache");  // so that kernels would have to be measured, which is told
  const std::vector<std::string> arguments = {"train", "job.yaml", "--out", "run"};
  EXPECT_THAT(refusal(arguments, {"model.init=first/model.safetensors", "model.name=resnet18"}),
              AllOf(HasSubstr("first/model.safetensors"), HasSubstr("resnet18"), HasSubstr("missing layer1.1")));
  EXPECT_THAT(refusal(arguments, {"model.init=first/model.safetensors", "model.channels=1"}),
              AllOf(HasSubstr("conv1.weight is"), HasSubstr("16x3x3x3"), HasSubstr("16x1x3x3")));
  EXPECT_THAT(refusal(arguments, {"model.init=job.yaml"}), AllOf(HasSubstr("job.yaml"), HasSubstr("safetensors")));
}

TEST_F(BadInput, CommandThatIsMissingOrUnknownIsAnsweredWithTheKnownOnes) {
  EXPECT_THAT(refusal({}),
              AllOf(HasSubstr("command"), HasSubstr("train, bench, schedule, profile, cluster, plan, simulate, report, "
                                                    "reproduce, convert, data, export, checkpoint, keys")));
  EXPECT_THAT(refusal({"trian", "job.yaml"}), AllOf(HasSubstr("\"trian\""), HasSubstr("did you mean train?")));
  EXPECT_THAT(refusal({"infer"}),
              AllOf(HasSubstr("\"infer\""), HasSubstr("train, bench, schedule, profile, cluster, plan, simulate, "
                                                      "report, reproduce, convert, data, export, checkpoint, keys")));
}

TEST_F(BadInput, OptionThatIsUnknownIsAnsweredWithTheNearest) {
  EXPECT_THAT(refusal({"train", "job.yaml", "--overwriet"}),
              AllOf(HasSubstr("\"--overwriet\""), HasSubstr("did you mean --overwrite?")));
  EXPECT_THAT(refusal({"bench", "job.yaml", "--quiet"}),
              AllOf(HasSubstr("\"--quiet\""), HasSubstr("--layers"), HasSubstr("--warmup")));
  EXPECT_THAT(refusal({"--set", "batch=2", "train", "job.yaml"}), AllOf(HasSubstr("\"--set\""), HasSubstr("follow")));
}

TEST_F(BadInput, ArgumentsThatAreMissingOrTooManyAreNamed) {
  EXPECT_THAT(refusal({"train"}), AllOf(HasSubstr("JOB"), HasSubstr("millrace train --help")));
  EXPECT_THAT(refusal({"train", "job.yaml", "second.yaml"}), HasSubstr("second.yaml"));
  EXPECT_THAT(refusal({"train", "job.yaml", "--out"}), HasSubstr("--out"));
  EXPECT_THAT(refusal({"bench", "job.yaml", "--warmup", "-1"}), AllOf(HasSubstr("--warmup"), HasSubstr("-1")));
  EXPECT_THAT(refusal({"bench", "job.yaml", "--warmup", "few"}), AllOf(HasSubstr("--warmup"), HasSubstr("few")));
}

}  // namespace
}  // namespace millrace::cli
