#include "millrace/job/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>

#include "millrace/base/random.h"
#include "millrace/job/fields.h"

namespace millrace::job {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using testing::ThrowsMessage;

// A job that is complete but for the lines a test adds; they begin on line 2.
std::function<void()> parsing(const std::string& lines, std::vector<std::string> sets = {}) {
  return [=] { parse_job("steps: 1\n" + lines, "job.yaml", sets); };
}
std::function<void()> setting(const std::string& set) { return parsing("", {set}); }

template <typename Message>
auto refuses(Message message) {
  return ThrowsMessage<std::invalid_argument>(message);
}

TEST(Reader, ReadsEveryKindOfKey) {
  const Job job = parse_job(
      "name: a run\n"
      "batch: 48\n"
      "epochs: 2.5\n"
      "seed: 18446744073709551615\n"
      "device: reference\n"
      "model: {name: vgg16_bn, classes: 10}\n"
      "data:\n  kind: generated\n  train_samples: 100\n"
      "optimizer:\n  lr: 5e-3\n  nesterov: true\n"
      "schedule:\n  kind: step\n  milestones: [1, 1.5]\n"
      "backend:\n  winograd: off\n",
      "job.yaml", {});
  EXPECT_EQ(job.name, "a run");
  EXPECT_EQ(job.batch, 48);
  EXPECT_EQ(job.epochs, 2.5);
  EXPECT_EQ(job.seed, 18446744073709551615u);
  EXPECT_EQ(job.device, Device::Reference);
  EXPECT_EQ(job.model.name, "vgg16_bn");
  EXPECT_EQ(job.model.classes, 10);
  EXPECT_EQ(job.data.kind, DataKind::Generated);
  EXPECT_EQ(job.optimizer.lr, 5e-3);
  EXPECT_TRUE(job.optimizer.nesterov);
  EXPECT_EQ(job.schedule.milestones, (std::vector<double>{1, 1.5}));
  EXPECT_EQ(job.backend.winograd, Winograd::Off);
}

TEST(Reader, KeysThatAreNotGivenHaveTheirDefaults) {
  Job expected;
  expected.steps = 1;
  expected.name = "job";
  EXPECT_EQ(parse_job("steps: 1", "some/where/job.yaml", {}), expected);
}

TEST(Reader, DottedKeysEmptySectionsAndAnchorsAreTaken) {
  const Job job = parse_job("steps: &n 7\nbatch: *n\noptimizer.lr: 0.2\nmodel:\n  # name: vgg16\n", "job.yaml", {});
  EXPECT_EQ(job.batch, 7);
  EXPECT_EQ(job.optimizer.lr, 0.2);
}

TEST(Reader, SetsWinOverTheFileAndLaterSetsOverEarlier) {
  const Job job =
      parse_job("steps: 1\nbatch: 8\n", "job.yaml",
                {"batch=16", "batch=32", "schedule.kind=step", "schedule.milestones=[3, 6]", "name=a=b: c"});
  EXPECT_EQ(job.batch, 32);
  EXPECT_EQ(job.schedule.milestones, (std::vector<double>{3, 6}));
  EXPECT_EQ(job.name, "a=b: c");
  EXPECT_EQ(parse_job("steps: 1\nschedule: {kind: step, milestones: [1]}", "job.yaml", {"schedule.milestones=4,5"})
                .schedule.milestones,
            (std::vector<double>{4, 5}));
}

TEST(Reader, UnknownKeysAreRefusedWithTheNearestName) {
  EXPECT_THAT(parsing("optimzer:\n  lr: 0.1\n"),
              refuses("job.yaml:3: unknown key \"optimzer.lr\"; did you mean \"optimizer.lr\"?"));
  EXPECT_THAT(parsing("optimizer:\n  momentun: 0.1\n"),
              refuses("job.yaml:3: unknown key \"optimizer.momentun\"; did you mean \"optimizer.momentum\"?"));
  EXPECT_THAT(parsing("bacth: 3\n"), refuses("job.yaml:2: unknown key \"bacth\"; did you mean \"batch\"?"));
  EXPECT_THAT(parsing("batch_size: 3\n"), refuses("job.yaml:2: unknown key \"batch_size\"; did you mean \"batch\"?"));
  EXPECT_THAT(parsing("optimiser: {}\n"),
              refuses("job.yaml:2: unknown key \"optimiser\"; did you mean \"optimizer\"?"));
}

TEST(Reader, AKeyInTheWrongSectionIsSentToItsOwn) {
  EXPECT_THAT(parsing("lr: 0.1\n"), refuses("job.yaml:2: unknown key \"lr\"; did you mean \"optimizer.lr\"?"));
  EXPECT_THAT(parsing("optimizer: {label_smoothing: 0.1}\n"),
              refuses("job.yaml:2: unknown key \"optimizer.label_smoothing\"; did you mean \"loss.label_smoothing\"?"));
  EXPECT_THAT(parsing("model:\n  batch: 3\n"),
              refuses("job.yaml:3: unknown key \"model.batch\"; did you mean \"batch\"?"));
}

TEST(Reader, UnknownKeysLikeNoneListTheirNeighbours) {
  EXPECT_THAT(parsing("loss: {xyzzy: 1}\n"),
              refuses("job.yaml:2: unknown key \"loss.xyzzy\"; loss has label_smoothing"));
  EXPECT_THAT(parsing("xyzzy: 1\n"), refuses(StartsWith("job.yaml:2: unknown key \"xyzzy\"; a job has name, batch, ")));
  EXPECT_THAT(parsing("xyzzy: &a {b: *a}\n"), refuses(StartsWith("job.yaml:2: unknown key \"xyzzy.b.b\"; ")));
}

TEST(Reader, WrongTypesAreRefusedWithAnExample) {
  EXPECT_THAT(parsing("batch: many\n"),
              refuses("job.yaml:2: batch: \"many\" is not a whole number; write e.g. batch: 32"));
  EXPECT_THAT(parsing("batch: 3.5\n"), refuses(HasSubstr("\"3.5\" is not a whole number")));
  EXPECT_THAT(parsing("batch: 99999999999999999999\n"),
              refuses("job.yaml:2: batch: \"99999999999999999999\" is a number out of range; write e.g. batch: 32"));
  EXPECT_THAT(parsing("optimizer:\n  lr: .nan\n"),
              refuses("job.yaml:3: optimizer.lr: \".nan\" is not a number; write e.g. optimizer.lr: 0.1"));
  EXPECT_THAT(parsing("optimizer: {lr: 1e999}\n"), refuses(HasSubstr("\"1e999\" is a number out of range")));
  EXPECT_THAT(parsing("optimizer: {nesterov: 1}\n"),
              refuses("job.yaml:2: optimizer.nesterov: \"1\" is neither true nor false; write one of the two"));
  EXPECT_THAT(parsing("schedule: {milestones: [1, two]}\n"),
              refuses("job.yaml:2: schedule.milestones: \"two\" is not a number; "
                      "write e.g. schedule.milestones: [30, 60, 80]"));
  EXPECT_THAT(parsing("schedule: {milestones: ['', 2]}\n"), refuses(HasSubstr("\"\" is not a number")));
  EXPECT_THAT(parsing("schedule: {milestones: [[1], 2]}\n"), refuses(HasSubstr("is a list of plain values")));
}

TEST(Reader, WrongFormsAreRefusedWithAnExample) {
  EXPECT_THAT(parsing("batch:\n"), refuses("job.yaml:2: batch has no value; write e.g. batch: 32"));
  EXPECT_THAT(parsing("batch: [1, 2]\n"), refuses("job.yaml:2: batch is not a list; write e.g. batch: 32"));
  EXPECT_THAT(parsing("batch: {size: 1}\n"), refuses("job.yaml:2: batch has no keys below it; write e.g. batch: 32"));
  EXPECT_THAT(parsing("loss: 0.1\n"), refuses("job.yaml:2: loss is a section, not a key; it has loss.label_smoothing"));
  EXPECT_THAT(parsing("? [1, 2]\n: 3\n"), refuses("job.yaml:2: a key must be a word, e.g. batch: 32"));
}

TEST(Reader, NumbersOutOfRangeAreRefusedWithTheRange) {
  EXPECT_THAT(parsing("batch: 0\n"), refuses("job.yaml:2: batch is 0; it must be at least 1"));
  EXPECT_THAT(parsing("batch: 1000000000\n"), refuses("job.yaml:2: batch is 1000000000; it must be at most 1000000"));
  EXPECT_THAT(parsing("seed: -1\n"), refuses("job.yaml:2: seed is -1; it must be at least 0"));
  EXPECT_THAT(parsing("model: {dropout: 1}\n"), refuses("job.yaml:2: model.dropout is 1; it must be below 1"));
  EXPECT_THAT(parsing("loss: {label_smoothing: -0.1}\n"),
              refuses("job.yaml:2: loss.label_smoothing is -0.1; it must be at least 0"));
  EXPECT_THAT(parsing("loss: {label_smoothing: 1.0}\n"),
              refuses("job.yaml:2: loss.label_smoothing is 1; it must be below 1"));
  EXPECT_THAT(parsing("schedule: {milestones: [-1]}\n"),
              refuses("job.yaml:2: schedule.milestones is -1; it must be at least 0"));
}

TEST(Reader, PlacementsWeightsAndCutsAreReadPlainOrInQuotes) {
  const Parallel parallel = parse_job(
                                "steps: 1\nparallel:\n  mode: gpipe\n  placement: 0:0,0:1.0:2\n"
                                "  cuts: [layer3]\n  replicas: split\n",
                                "job.yaml", {})
                                .parallel;
  EXPECT_EQ(parallel.mode, Mode::GPipe);
  EXPECT_EQ(parallel.placement, "0:0,0:1.0:2");
  EXPECT_EQ(parallel.cuts, (std::vector<std::string>{"layer3"}));
  const std::vector<std::string> sets{"parallel.mode=ssp", "parallel.placement=0:0.0:1.0:2",
                                      "parallel.cuts=layer2, layer3", "parallel.versions=[4, 2, 1]"};
  const Parallel set = parse_job("steps: 1\n", "job.yaml", sets).parallel;
  EXPECT_EQ(set.cuts, (std::vector<std::string>{"layer2", "layer3"}));
  EXPECT_EQ(set.versions, (std::vector<int>{4, 2, 1}));
  EXPECT_EQ(
      parse_job("steps: 1\nparallel: {placement: '0:0', stage_weights: '2'}", "job.yaml", {}).parallel.stage_weights,
      "2");
}

TEST(Reader, GpusAreJoinedByNcclUnlessItIsOff) {
  EXPECT_TRUE(parse_job("steps: 1\n", "job.yaml", {}).parallel.nccl);
  EXPECT_FALSE(parse_job("steps: 1\nparallel: {nccl: off}\n", "job.yaml", {}).parallel.nccl);
  EXPECT_TRUE(parse_job("steps: 1\n", "job.yaml", {"parallel.nccl=auto"}).parallel.nccl);
}

TEST(Reader, MistakesInPlacementsNameTheirLine) {
  EXPECT_THAT(parsing("parallel:\n  placement: 0:0-\n"),
              refuses("job.yaml:3: parallel.placement \"0:0-\", character 5: the text ends where a device's number "
                      "belongs; write e.g. 0:0-6.0:7"));
  EXPECT_THAT(setting("parallel.stage_weights=1:-1"),
              refuses(StartsWith("--set parallel.stage_weights=1:-1: parallel.stage_weights \"1:-1\": \"-1\"")));
  EXPECT_THAT(parsing("parallel: {versions: [0]}\n"),
              refuses("job.yaml:2: parallel.versions is 0; it must be at least 1"));
  EXPECT_THAT(parsing("parallel: {versions: [1.5]}\n"), refuses(HasSubstr("\"1.5\" is not a whole number")));
  EXPECT_THAT(parsing("parallel: {cuts: [layer3, 'a b']}\n"),
              refuses("job.yaml:2: parallel.cuts holds \"a b\"; a name is letters, digits, '_', '.' and '-': write "
                      "e.g. [layer2, layer4.0]"));
  EXPECT_THAT(parsing("parallel: {cuts: ['', layer3]}\n"), refuses(HasSubstr("holds \"\"")));
  EXPECT_THAT(parsing("parallel: {mode: pipdream}\n"), refuses(HasSubstr("did you mean pipedream?")));
}

TEST(Reader, UnknownChoicesAreRefusedWithTheList) {
  EXPECT_THAT(parsing("schedule: {kind: cosin}\n"),
              refuses("job.yaml:2: schedule.kind: \"cosin\" is not one of constant, step, cosine, linear, polynomial; "
                      "did you mean cosine?"));
  EXPECT_THAT(parsing("device: tpu7\n"), refuses("job.yaml:2: device: \"tpu7\" is not one of cpu, cuda, reference"));
  EXPECT_THAT(
      parsing("model: {name: resnet51}\n"),
      refuses("job.yaml:2: model.name: \"resnet51\" is not one of alexnet, alexnet_small, vgg16, vgg16_bn, "
              "resnet18, resnet34, resnet50, resnet_small, vit_s_16, vit_b_16, vit_l_16, bert_base, bert_large, "
              "gpt2, gpt2_medium, gpt2_large, gpt2_xl, bag_of_tokens; did you mean resnet50?"));
}

TEST(Reader, WhatIsNotBuiltYetIsSaidToBeSo) {
  EXPECT_THAT(parsing("precision: fp64\n"),
              refuses("job.yaml:2: precision fp64 is not built yet in this version; write precision: fp32"));
  EXPECT_THAT(setting("precision=fp64"),
              refuses("--set precision=fp64: precision fp64 is not built yet in this version; write precision=fp32"));
}

TEST(Reader, AKeyGivenTwiceIsRefused) {
  EXPECT_THAT(parsing("batch: 2\nbatch: 4\n"), refuses("job.yaml:3: batch is given twice, first on line 2"));
  EXPECT_THAT(parsing("loss: {}\nloss: {}\n"), refuses("job.yaml:3: loss is given twice, first on line 2"));
  EXPECT_THAT(parsing("loss: {label_smoothing: 0}\nloss.label_smoothing: 0\n"),
              refuses("job.yaml:3: loss.label_smoothing is given twice, first on line 2"));
}

TEST(Reader, DocumentsThatAreNoJobAreRefused) {
  const auto whole = [](const std::string& text) { return [=] { parse_job(text, "job.yaml", {}); }; };
  EXPECT_THAT(whole(""), refuses("job.yaml: the file is empty; write e.g. batch: 32"));
  EXPECT_THAT(whole("# nothing\n"), refuses("job.yaml: the file is empty; write e.g. batch: 32"));
  EXPECT_THAT(whole("- batch\n"),
              refuses("job.yaml:1: a job is lines of \"key: value\", e.g. batch: 32; this is a list"));
  EXPECT_THAT(whole("batch\n"),
              refuses("job.yaml:1: a job is lines of \"key: value\", e.g. batch: 32; this is \"batch\""));
  EXPECT_THAT(whole("steps: 1\n---\nsteps: 2\n"),
              refuses("job.yaml:2: a second document begins here; a job file holds one"));
  EXPECT_THAT(whole(",batch: 1\n"),
              refuses("job.yaml:1: not valid YAML: a document cannot begin so; write e.g. batch: 32"));
  EXPECT_THAT(whole(std::string("steps: 1\0", 9)), refuses("job.yaml: not a text file; a job is written in YAML"));
}

TEST(Reader, SyntaxErrorsNameTheirLine) {
  EXPECT_THAT(parsing("batch: 2\n  seed: 3\n"), refuses(StartsWith("job.yaml:3: not valid YAML: ")));
  EXPECT_THAT(parsing("batch: *nothing\n"), refuses(StartsWith("job.yaml:2: not valid YAML: ")));
  EXPECT_THAT(parsing("batch: " + std::string(100'000, '[')), refuses(HasSubstr("not valid YAML")));
}

TEST(Reader, DamagedJobsAreReadOrRefusedInOneLine) {
  Job whole;
  whole.steps = 1;
  whole.name = "a name";
  const std::string good = to_yaml(whole);
  const std::string interesting = "{}[]\"':,#&*!|>%@`-?~0 \n\t\\\xFF\x01";
  const RandomStream random(7, 0, 0);
  for (uint64_t trial = 0; trial < 3000; ++trial) {
    std::string text = good;
    for (uint64_t change = 0; change < 1 + trial % 3; ++change) {
      const RandomBlock words = random.at(4 * trial + change);
      const size_t place = words[0] % text.size();
      const char c = interesting[words[1] % interesting.size()];
      switch (words[2] % 3) {
        case 0: text[place] = c; break;
        case 1: text.insert(place, 1 + words[3] % 3, c); break;
        case 2: text.erase(place, 1 + words[3] % 5); break;
      }
    }
    try {
      parse_job(text, "job.yaml", {});
    } catch (const std::invalid_argument& error) {
      ASSERT_THAT(error.what(), StartsWith("job.yaml")) << text;
      ASSERT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  }
}

TEST(Reader, WhatASetReplacesIsNotLookedAt) {
  const std::string job = "precision: fp64\nbatch: 8\n";
  EXPECT_THAT([&] { parse_job(job, "job.yaml", {}); },
              refuses("job.yaml:1: precision fp64 is not built yet in this version; write precision: fp32"));
  EXPECT_EQ(parse_job(job, "job.yaml", {"precision=fp32", "steps=1"}).precision, Precision::Fp32);
  EXPECT_THAT([] { parse_job("batch: {a: 1}\n", "job.yaml", {"batch=4"}); }, refuses(StartsWith("job.yaml:1: batch")));
}

TEST(Reader, WrongSetsAreRefusedByName) {
  EXPECT_THAT(setting("batch=x"), refuses("--set batch=x: batch: \"x\" is not a whole number; write e.g. batch=32"));
  EXPECT_THAT(setting("batch=0"), refuses("--set batch=0: batch is 0; it must be at least 1"));
  EXPECT_THAT(setting("batch"), refuses("--set batch: write --set key=value, e.g. --set batch=32"));
  EXPECT_THAT(setting("bath=3"), refuses("--set bath=3: unknown key \"bath\"; did you mean \"batch\"?"));
  EXPECT_THAT(setting("loss=3"), refuses("--set loss=3: loss is a section, not a key; it has loss.label_smoothing"));
  EXPECT_THAT(setting("=3"), refuses(StartsWith("--set =3: unknown key \"\"; a job has")));
  EXPECT_THAT(setting("name=a\nb"),
              refuses("--set name=a\\nb: name is \"a\\nb\"; it must not hold control characters"));
}

class ReaderFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) / ("reader_test" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
};

TEST_F(ReaderFiles, AFileIsReadAndGivesTheRunItsName) {
  std::ofstream(folder_ / "my_job.yaml") << "steps: 3\n";
  const Job job = read_job((folder_ / "my_job.yaml").string(), {"batch=4"});
  EXPECT_EQ(job.steps, 3);
  EXPECT_EQ(job.batch, 4);
  EXPECT_EQ(job.name, "my_job");
}

TEST_F(ReaderFiles, MissingFilesAndDirectoriesAreRefused) {
  EXPECT_THAT([] { read_job("no/such.yaml", {}); }, refuses("no/such.yaml: no such job file"));
  EXPECT_THAT([this] { read_job(folder_.string(), {}); },
              refuses(folder_.string() + ": is a directory; name the job file in it"));
}

TEST_F(ReaderFiles, FilesThatAreFarTooLargeAreRefused) {
  const std::string path = (folder_ / "large.yaml").string();
  std::ofstream(path) << std::string(2 << 20, '#');
  EXPECT_THAT([&] { read_job(path, {}); }, refuses(path + ": larger than 1 MiB; that is no job file"));
}

TEST(Writer, AJobWrittenReadsBackEqual) {
  Job job;
  job.name = "null";
  job.batch = 48;
  job.steps = 12;
  job.epochs = 0.1;
  job.seed = 18446744073709551615u;
  job.device = Device::Reference;
  job.model.name = "resnet_small";
  job.data.noise = 1.0 / 3;
  job.optimizer.weight_decay = 1.0 / 32768;
  job.optimizer.nesterov = true;
  job.schedule.kind = Decay::Step;
  job.schedule.milestones = {0.1, 30, 1e5};
  job.parallel = {.mode = Mode::Ssp,
                  .placement = "0:0-1.0:2",
                  .balance = Balance::Flops,
                  .cuts = {"layer2.0.conv1"},
                  .versions = {3, 1},
                  .static_scheduling = false,
                  .multi_buffer = false,
                  .bucket_mib = 0.1};
  job.backend.winograd = Winograd::Off;
  EXPECT_EQ(parse_job(to_yaml(job), "other.yaml", {}), job);
}

TEST(Writer, SharesOfStagesReadBackEqual) {
  Job job;
  job.name = "shares";
  job.steps = 1;
  job.parallel.mode = Mode::OneFOneB;
  job.parallel.placement = "0:0-7,1:0-7.2:0-3";
  job.parallel.stage_weights = "10:1";
  job.parallel.replicas = Replicas::RoundRobin;
  job.parallel.microbatches = 16;
  EXPECT_EQ(parse_job(to_yaml(job), "other.yaml", {}), job) << to_yaml(job);
  job.parallel.placement = "0:0-1.0:2";
  job.parallel.replicas = Replicas::Split;
  job.parallel.shares = "5:3.1";
  EXPECT_EQ(parse_job(to_yaml(job), "other.yaml", {}), job) << to_yaml(job);
}

TEST(Writer, AnyNameReadsBackEqual) {
  for (const char* name :
       {"a", "a: b # c", "\"quoted\" \\ 'too'", "[1]", "12", "~", "- x", " spaces ", "über", "*a", "&a"}) {
    Job job;
    job.name = name;
    job.steps = 1;
    EXPECT_EQ(parse_job(to_yaml(job), "other.yaml", {}), job) << to_yaml(job);
  }
}

TEST(Writer, EveryDefaultLiesInItsRange) {
  for (const Field& field : fields()) EXPECT_EQ(field.fault(Job{}), "") << field.key;
}

TEST(Writer, EveryKeyTakesItsOwnExample) {
  for (const Field& field : fields()) {
    Job job;
    EXPECT_EQ(field.read(job, field.example, ": "), "") << field.key;
    EXPECT_EQ(field.fault(job), "") << field.key;
  }
}

// Two keys on one member, or a key on another's member, would pass the other tests.
TEST(Writer, EveryKeyChangesAMemberOfItsOwn) {
  std::set<std::string> seen;
  for (const Field& field : fields()) {
    EXPECT_TRUE(seen.insert(field.key).second) << field.key;
    Job job;
    const std::string before = field.write(job);
    for (std::string text : {"0.25", "1", "7", "x", "true", "false", "3 steps",
                             field.choices.empty() ? "" : field.choices.back().c_str()}) {
      if (field.read(job, text, "=").empty() && field.write(job) != before) break;
    }
    if (field.key == "precision") continue;  // has one value only
    EXPECT_NE(field.write(job), before) << field.key;
    for (const Field& other : fields()) {
      if (&other == &field) continue;
      EXPECT_EQ(other.write(job), other.write(Job{})) << field.key << " changes " << other.key;
    }
  }
}

TEST(Writer, TheTableOfKeysIsAligned) {
  const std::string table = describe_keys();
  EXPECT_THAT(table, StartsWith("key "));
  EXPECT_THAT(table, HasSubstr("\nbatch                            32                  samples per step\n"));
  EXPECT_THAT(table, HasSubstr("(constant, step, cosine, linear, polynomial)\n"));
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), static_cast<std::ptrdiff_t>(fields().size()) + 1);
}

}  // namespace
}  // namespace millrace::job
