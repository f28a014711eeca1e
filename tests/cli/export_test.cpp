// What `millrace export` makes of a run, and that a run can start from it.
#include <gmock/gmock.h>

#include <cstring>

#include "cli/command_runner.h"
#include "cli/tiny_job.h"

namespace millrace::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Export : public CommandTest {
 protected:
  Export() {
    write("cnn.yaml", tiny_job());
    write("vit.yaml", std::string("batch: 4\nsteps: 2\nthreads: 1\ndevice: ") + kDevice + R"(
model:
  name: vit_s_16
  classes: 6
  image_size: 4
  patch: 2
  width: 8
  layers: 2
  heads: 2
  mlp: 12
data:
  kind: generated
  train_samples: 16
optimizer:
  lr: 0.05
)");
  }

  // A model of text, with lines of its own.
  void write_text_job(const std::string& file, const std::string& lines) const {
    write(file, std::string("batch: 4\nsteps: 2\nthreads: 1\ndevice: ") + kDevice + R"(
data:
  kind: synthetic
optimizer:
  lr: 0.05
model:
  width: 8
  layers: 2
  heads: 2
  mlp: 12
  vocabulary: 11
  tokens: 5
)" + lines);
  }

  void train(const std::string& job, const std::string& out, const std::vector<std::string>& sets = {}) {
    const Outcome outcome = run({"train", job, "--out", out}, sets);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  }

  nlohmann::json header(const std::string& file) const {
    const std::string bytes = read(file);
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
    return nlohmann::json::parse(bytes.substr(sizeof header_bytes, header_bytes));
  }
};

TEST_F(Export, ADirectoryIsWhatFromPretrainedReads) {
  train("vit.yaml", "run");
  const Outcome outcome = run({"export", "run", "-o", "for/others"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("for/others/model.safetensors"), HasSubstr("ViTForImageClassification"),
                                 HasSubstr("from_pretrained(\"for/others\")")));
  const nlohmann::json config = json("for/others/config.json");
  EXPECT_EQ(config.at("architectures").at(0), "ViTForImageClassification");
  EXPECT_EQ(config.at("num_hidden_layers"), 2);
  EXPECT_EQ(config.at("patch_size"), 2);
  EXPECT_EQ(config.at("id2label").size(), 6u);
  const nlohmann::json tensors = header("for/others/model.safetensors");
  EXPECT_EQ(tensors.at("__metadata__").at("format"), "pt");
  EXPECT_EQ(tensors.at("vit.embeddings.cls_token").at("shape"), nlohmann::json::parse("[1, 1, 8]"));
  EXPECT_TRUE(tensors.contains("vit.encoder.layer.1.attention.attention.key.weight"));
  EXPECT_FALSE(tensors.contains("vit.encoder.layer.1.attention.attention.qkv.weight"));
  std::set<std::string> written;
  for (const std::string& file : files()) {
    if (file.starts_with("for")) written.insert(file);
  }
  EXPECT_EQ(written,
            (std::set<std::string>{"for", "for/others", "for/others/config.json", "for/others/model.safetensors"}));
}

TEST_F(Export, ARunThatStartsFromItHasTheSameParameters) {
  train("vit.yaml", "run");
  ASSERT_EQ(run({"export", "run", "-o", "exported"}).exit_code, 0);
  train("vit.yaml", "again", {"model.init=exported/model.safetensors", "optimizer.lr=0", "seed=7"});
  ASSERT_EQ(run({"export", "again", "-o", "again.safetensors"}).exit_code, 0);
  EXPECT_EQ(read("again.safetensors"), read("exported/model.safetensors"));
}

TEST_F(Export, ModelsOfTextComeBackTheSameToo) {
  write_text_job("gpt2.yaml", "  name: gpt2\n");
  write_text_job("bert.yaml", "  name: bert_base\n  classes: 3\n");
  write_text_job("span.yaml", "  name: bert_base\n  head: span\n");
  for (const auto& [model, architecture] : {std::pair("gpt2", "GPT2LMHeadModel"),
                                            {"bert", "BertForSequenceClassification"},
                                            {"span", "BertForQuestionAnswering"}}) {
    const std::string name(model), job = name + ".yaml", exported = name + "-exported", again = name + "-again";
    train(job, name);
    ASSERT_EQ(run({"export", name, "-o", exported}).exit_code, 0);
    EXPECT_EQ(json(exported + "/config.json").at("architectures").at(0), architecture);
    train(job, again, {"model.init=" + exported + "/model.safetensors", "optimizer.lr=0", "seed=7"});
    ASSERT_EQ(run({"export", again, "-o", again + ".safetensors"}).exit_code, 0);
    EXPECT_EQ(read(again + ".safetensors"), read(exported + "/model.safetensors"));
  }
}

TEST_F(Export, TheFileThatARunBeganWithNeedNotBeThere) {
  train("vit.yaml", "first");
  train("vit.yaml", "second", {"model.init=first/model.safetensors"});
  std::filesystem::remove_all(path("first"));
  EXPECT_EQ(run({"export", "second", "-o", "exported"}).exit_code, 0);
}

TEST_F(Export, AFileHasNoConfigBesideIt) {
  train("vit.yaml", "run");
  const Outcome outcome = run({"export", "run", "-o", "w.safetensors"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("-o DIR writes one"));
  EXPECT_FALSE(exists("config.json"));
  EXPECT_EQ(header("w.safetensors").size(), 2u * 16 + 8 + 1);
}

TEST_F(Export, AConvolutionalNetworkHasTorchvisionsNamesAndNoConfig) {
  train("cnn.yaml", "run");
  const Outcome outcome = run({"export", "run", "-o", "exported"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("resnet_small"), HasSubstr("no config.json"), HasSubstr("torchvision")));
  EXPECT_FALSE(exists("exported/config.json"));
  const nlohmann::json tensors = header("exported/model.safetensors");
  for (const char* name : {"conv1.weight", "bn1.running_mean", "layer1.0.conv1.weight", "fc.bias"}) {
    EXPECT_TRUE(tensors.contains(name)) << name;
  }
}

TEST_F(Export, AFileOfParametersNeedsItsJob) {
  train("vit.yaml", "run");
  std::filesystem::create_directory(path("moved"));
  std::filesystem::copy(path("run/model.safetensors"), path("moved/best.safetensors"));
  EXPECT_THAT(refusal({"export", "moved/best.safetensors", "-o", "exported"}),
              AllOf(HasSubstr("moved/job.yaml is missing"), HasSubstr("--job")));
  ASSERT_EQ(run({"export", "moved/best.safetensors", "--job", "vit.yaml", "-o", "exported"}).exit_code, 0);
  ASSERT_EQ(run({"export", "run/model.safetensors", "-o", "beside"}).exit_code, 0);
  EXPECT_EQ(read("exported/model.safetensors"), read("beside/model.safetensors"));
}

TEST_F(Export, WhatIsNoFinishedRunIsRefused) {
  EXPECT_THAT(refusal({"export", "nowhere", "-o", "exported"}), HasSubstr("nowhere: there is no such run or file"));
  std::filesystem::create_directory(path("empty"));
  EXPECT_THAT(refusal({"export", "empty", "-o", "exported"}), HasSubstr("empty/job.yaml is missing"));
  write("empty/job.yaml", read("vit.yaml"));
  EXPECT_THAT(refusal({"export", "empty", "-o", "exported"}), HasSubstr("model.safetensors is missing"));
  write("empty/model.safetensors", "nothing of that kind");
  EXPECT_THAT(refusal({"export", "empty", "-o", "exported"}), HasSubstr("not a safetensors file"));
}

TEST_F(Export, ParametersOfAnotherJobAreRefusedAndNothingIsMadeUp) {
  train("vit.yaml", "run");
  // A training could start so, with places resized; an export cannot.
  std::string larger = read("vit.yaml");
  larger.replace(larger.find("image_size: 4"), 13, "image_size: 8");
  write("larger.yaml", larger);
  EXPECT_THAT(refusal({"export", "run", "--job", "larger.yaml", "-o", "exported"}),
              AllOf(HasSubstr("run/model.safetensors"), HasSubstr("larger.yaml"), HasSubstr("2x2 in the file, 4x4")));
  EXPECT_THAT(refusal({"export", "run", "--job", "cnn.yaml", "-o", "exported"}), HasSubstr("resnet_small"));
}

TEST_F(Export, OutputsThatCannotBeWrittenAreRefused) {
  train("vit.yaml", "run");
  write("taken", "mine");
  EXPECT_THAT(refusal({"export", "run", "-o", "taken"}), AllOf(HasSubstr("-o taken"), HasSubstr(".safetensors")));
  EXPECT_EQ(read("taken"), "mine");
  EXPECT_THAT(refusal({"export", "run", "-o", "no/such/w.safetensors"}), HasSubstr("-o no/such/w.safetensors"));
  EXPECT_THAT(refusal({"export", "run"}), HasSubstr("--out"));
}

TEST_F(Export, FilesThatAreThereAreReplaced) {
  train("vit.yaml", "run");
  std::filesystem::create_directory(path("exported"));
  write("exported/config.json", "old");
  write("exported/model.safetensors", "old");
  ASSERT_EQ(run({"export", "run", "-o", "exported"}).exit_code, 0);
  EXPECT_EQ(json("exported/config.json").at("model_type"), "vit");
  EXPECT_EQ(header("exported/model.safetensors").size(), 2u * 16 + 8 + 1);
}

TEST_F(Export, WhatIsNotTakenFromAFileAsItIsIsSaidWhenTrainingStarts) {
  train("vit.yaml", "run");
  const Outcome outcome = run({"train", "vit.yaml", "--out", "larger"},
                              {"model.init=run/model.safetensors", "model.image_size=8", "steps=1"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("run/model.safetensors: vit.embeddings.position_embeddings is resized: a grid of "
                                     "2x2 in the file, 4x4 here\n"));
}

TEST_F(Export, AHeadForOtherClassesStartsAnewAndThatIsSaid) {
  train("cnn.yaml", "run", {"steps=1"});
  const Outcome outcome =
      run({"train", "cnn.yaml", "--out", "more"}, {"model.init=run/model.safetensors", "model.classes=7", "steps=1"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              HasSubstr("run/model.safetensors: fc starts anew: fc.weight is 6x64 in the file, 7x64 here\n"));
}

}  // namespace
}  // namespace millrace::cli
