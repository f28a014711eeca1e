// Real data from the command line: converting, looking, training, and what is said of data that is broken.
#include <gmock/gmock.h>

#include "cli/command_runner.h"
#include "cli/tiny_job.h"
#include "data/image/test_pictures.h"
#include "millrace/data/image/jpeg.h"
#include "millrace/data/image/png.h"

namespace millrace::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class DataCommands : public CommandTest {
 protected:
  static std::string jpeg(uint64_t number, int channels = 3) {
    const auto bytes =
        data::encode_jpeg(data::test_picture(24 + static_cast<int>(number % 7), 20, channels, number), 90);
    return {bytes.begin(), bytes.end()};
  }
  // `count` pictures in the folders cat, dog and fox.
  void write_folder(const std::string& name, int count) {
    const char* classes[] = {"cat", "dog", "fox"};
    for (int i = 0; i < count; ++i) {
      const std::string folder = name + "/" + classes[i % 3];
      std::filesystem::create_directories(path(folder));
      write(folder + "/" + std::to_string(i) + ".jpg", jpeg(static_cast<uint64_t>(i)));
    }
  }
  std::string picture_job(const std::string& kind) const {
    return std::string("name: pictures\nbatch: 4\nepochs: 1\nthreads: 1\ndevice: ") + kDevice +
           "\nmodel: {name: resnet_small, classes: 3, image_size: 8}\ndata: {kind: " + kind +
           ", train: set, test: set}\noptimizer: {lr: 0.01}\n";
  }
};

TEST_F(DataCommands, AFolderBecomesRecordsThatTrain) {
  write_folder("pictures", 10);
  const Outcome converted = run({"convert", "pictures", "set", "--to", "ofrecord", "--parts", "3"});
  ASSERT_EQ(converted.exit_code, 0) << converted.err;
  EXPECT_THAT(converted.out, AllOf(HasSubstr("10"), HasSubstr("3 parts")));
  const Outcome again = run({"convert", "pictures", "set", "--to", "ofrecord", "--parts", "3"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("from before"));

  const Outcome looked = run({"data", "inspect", "set", "--check", "--json", "data.json", "--sheet", "sheet.png"});
  ASSERT_EQ(looked.exit_code, 0) << looked.err;
  EXPECT_THAT(looked.out, AllOf(HasSubstr("ofrecord"), HasSubstr("cat"), HasSubstr("10 JPEG")));
  const auto record = nlohmann::json::parse(read("data.json"));
  EXPECT_EQ(record.at("samples"), 10);
  EXPECT_EQ(record.at("per_label").at("0"), 4);
  EXPECT_EQ(record.at("unusable"), 0);
  const std::string png = read("sheet.png");
  const data::PngHeader header = data::read_png_header({reinterpret_cast<const uint8_t*>(png.data()), png.size()});
  EXPECT_EQ(header.width, 16 + 6 * 168);
  EXPECT_EQ(header.height, 8 + 8 * 168);

  write("job.yaml", picture_job("ofrecord"));
  const Outcome trained = run({"train", "job.yaml", "--out", "run"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const auto summary = nlohmann::json::parse(read("run/summary.json"));
  EXPECT_EQ(summary.at("samples"), 10);
  EXPECT_EQ(summary.at("skipped").at("while_reading"), 0);
}

TEST_F(DataCommands, RecordsAndFoldersTrainToTheSameBits) {
  write_folder("set", 10);
  write("job.yaml", picture_job("image_folder"));
  ASSERT_EQ(run({"train", "job.yaml", "--out", "folder"}).exit_code, 0);
  ASSERT_EQ(run({"convert", "set", "records", "--to", "ofrecord"}).exit_code, 0);
  ASSERT_EQ(run({"convert", "records", "back", "--to", "image_folder"}).exit_code, 0);
  // The order of the samples is the order of the files: 0, 1, 10 is not 0, 1, 2 - but here each has one digit.
  ASSERT_EQ(run({"train", "job.yaml", "--out", "records-run"},
                {"data.kind=ofrecord", "data.train=records", "data.test=records", "data.threads=3"})
                .exit_code,
            0);
  EXPECT_EQ(read("folder/model.safetensors"), read("records-run/model.safetensors"));
}

TEST_F(DataCommands, ABrokenPictureStopsOrIsSkippedAndCounted) {
  write_folder("set", 9);
  write("set/dog/4.jpg", jpeg(4).substr(0, 300));
  write("set/cat/6.jpg", jpeg(6, 1));
  write("job.yaml", picture_job("image_folder"));
  const Outcome stopped = run({"train", "job.yaml", "--out", "run"});
  EXPECT_EQ(stopped.exit_code, 2);
  EXPECT_THAT(stopped.err, AllOf(HasSubstr(".jpg"), HasSubstr("data.on_error: skip")));

  const Outcome skipped = run({"train", "job.yaml", "--out", "skipped"}, {"data.on_error=skip"});
  ASSERT_EQ(skipped.exit_code, 0) << skipped.err;
  EXPECT_THAT(skipped.out, AllOf(HasSubstr("dog/4.jpg"), HasSubstr("cat/6.jpg"), HasSubstr("grayscale")));
  const auto summary = nlohmann::json::parse(read("skipped/summary.json"));
  EXPECT_GE(summary.at("skipped").at("while_reading").get<int>(), 4);  // in training and in testing

  const Outcome converted =
      run({"train", "job.yaml", "--out", "converted"}, {"data.on_error=skip", "data.color=convert"});
  ASSERT_EQ(converted.exit_code, 0) << converted.err;
  EXPECT_THAT(converted.out, AllOf(HasSubstr("dog/4.jpg"), Not(HasSubstr("cat/6.jpg"))));

  const Outcome looked = run({"data", "inspect", "set", "--check"});
  ASSERT_EQ(looked.exit_code, 0) << looked.err;
  EXPECT_THAT(looked.out, HasSubstr("unusable: set/dog/4.jpg"));
}

TEST_F(DataCommands, WhatCannotWorkIsRefusedInOneLine) {
  write_folder("set", 3);
  write("job.yaml", picture_job("image_folder"));
  std::filesystem::create_directories(path("empty"));
  write("some.bin", "xyz");
  write("story.txt", "good");
  struct Refused {
    std::vector<std::string> command;
    std::string says;
  };
  for (const auto& [command, says] :
       std::vector<Refused>{{{"train", "job.yaml", "--set", "data.train=nowhere"}, "nowhere"},
                            {{"train", "job.yaml", "--set", "data.train=empty"}, "empty"},
                            {{"train", "job.yaml", "--set", "data.kind=ofrecord"}, "part-"},
                            {{"train", "job.yaml", "--set", "data.kind=cifar10"}, "set"},
                            {{"train", "job.yaml", "--set", "data.train="}, "data.train"},
                            {{"train", "job.yaml", "--set", "data.kind=tsv_text"}, "bert_base"},
                            {{"train", "job.yaml", "--set", "data.mean=[1,2]"}, "data.mean"},
                            {{"train", "job.yaml", "--set", "model.classes=2"}, "model.classes: 3"},
                            {{"convert", "nowhere", "out", "--to", "ofrecord"}, "nowhere"},
                            {{"convert", "some.bin", "out", "--to", "ofrecord"}, "--from"},
                            {{"convert", "set", "out", "--to", "cifar10"}, "--resize"},
                            {{"convert", "story.txt", "out.bin", "--to", "token_file"}, "--vocab"},
                            {{"convert", "story.txt", "out.bin", "--to", "token_file", "--parts", "2"}, "--parts"},
                            {{"convert", "set", "out", "--to", "ofrecord", "--vocab", "vocab.txt"}, "--vocab"},
                            {{"data", "inspect", "nowhere"}, "nowhere"},
                            {{"data", "inspect", "some.bin"}, "3 bytes"},
                            {{"data", "inspect", "empty"}, "--kind"}}) {
    const Outcome outcome = run(command);
    SCOPED_TRACE(testing::PrintToString(command));
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(says));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
}

TEST_F(DataCommands, ASentenceFileIsCounted) {
  write("train.tsv", "sentence\tlabel\ngood film\t1\nbad\t0\nbroken\nfine\t1\n");
  write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\ngood\nbad\nfilm\n");
  const Outcome looked = run({"data", "inspect", "train.tsv", "--vocab", "vocab.txt", "--json", "data.json"});
  ASSERT_EQ(looked.exit_code, 0) << looked.err;
  EXPECT_THAT(looked.out, HasSubstr("train.tsv:4"));
  const auto record = nlohmann::json::parse(read("data.json"));
  EXPECT_EQ(record.at("samples"), 3);
  EXPECT_EQ(record.at("unusable"), 1);
  EXPECT_EQ(record.at("per_label").at("1"), 2);
  EXPECT_EQ(record.at("tokens").at("most"), 4);
}

TEST_F(DataCommands, TextBecomesAFileOfTokensThatIsCounted) {
  write("story.txt", "good film\nbad film\n\nbad\n");
  write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\ngood\nbad\nfilm\n");
  const Outcome converted =
      run({"convert", "story.txt", "train.bin", "--to", "token_file", "--vocab", "vocab.txt", "--token-bytes", "4"});
  ASSERT_EQ(converted.exit_code, 0) << converted.err;
  EXPECT_THAT(converted.out, AllOf(HasSubstr("7 of 4 bytes"), HasSubstr("token_file")));
  EXPECT_EQ(read("train.bin"), std::string("\4\0\0\0\6\0\0\0\5\0\0\0\6\0\0\0\3\0\0\0\5\0\0\0\3\0\0\0", 28));

  const Outcome looked = run({"data", "inspect", "train.bin", "--tokens", "3", "--token-bytes", "4"});
  ASSERT_EQ(looked.exit_code, 0) << looked.err;
  EXPECT_THAT(looked.out, AllOf(HasSubstr("token_file"), HasSubstr("2 of 3 tokens"), HasSubstr("--check")));
  const Outcome checked =
      run({"data", "inspect", "train.bin", "--tokens", "3", "--token-bytes", "4", "--check", "--json", "data.json"});
  ASSERT_EQ(checked.exit_code, 0) << checked.err;
  EXPECT_THAT(checked.out, HasSubstr("6 at position 1 of train.bin; it needs model.vocabulary: 7"));
  const auto record = nlohmann::json::parse(read("data.json"));
  EXPECT_EQ(record.at("tokens"), 7);
  EXPECT_EQ(record.at("samples"), 2);
  EXPECT_EQ(record.at("files"), 1);
  EXPECT_EQ(record.at("largest_token"), 6);
  EXPECT_EQ(record.at("unusable"), 0);
}

}  // namespace
}  // namespace millrace::cli
