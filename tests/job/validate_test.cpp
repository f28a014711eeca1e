#include "millrace/job/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

namespace millrace::job {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// Validates a good job after a change to it.
std::function<void()> changed(const std::function<void(Job&)>& change) {
  return [=] {
    Job job;
    job.steps = 1;
    change(job);
    validate(job, "job.yaml");
  };
}

template <typename Message>
auto refuses(Message message) {
  return ThrowsMessage<std::invalid_argument>(message);
}

TEST(Validate, AGoodJobPasses) {
  EXPECT_NO_THROW(changed([](Job&) {})());
}

TEST(Validate, WarmupIsGivenInEpochsOrSteps) {
  EXPECT_THAT(
      changed([](Job& job) {
        job.schedule.warmup_epochs = 0.5;
        job.schedule.warmup_steps = 100;
      }),
      refuses("job.yaml: schedule.warmup_epochs is 0.5 and schedule.warmup_steps 100; set only one of the two"));
}

TEST(Validate, MicrobatchesDoNotExceedTheBatch) {
  EXPECT_THAT(changed([](Job& job) {
                job.batch = 4;
                job.parallel.microbatches = 8;
              }),
              refuses("job.yaml: batch is 4 and parallel.microbatches 8; a part needs a sample: write "
                      "parallel.microbatches: 4 or less, or batch: 8 or more"));
}

TEST(Validate, MicrobatchesDivideTheBatchAndWorkingNumbersAreOffered) {
  EXPECT_THAT(changed([](Job& job) {
                job.batch = 50;
                job.parallel.microbatches = 4;
              }),
              refuses("job.yaml: batch is 50 and parallel.microbatches 4; the parts must be equal: write "
                      "batch: 48 or 52, or parallel.microbatches: 2 or 5"));
  EXPECT_NO_THROW(changed([](Job& job) {
    job.batch = 48;
    job.parallel.microbatches = 4;
  })());
}

TEST(Validate, NesterovNeedsMomentum) {
  EXPECT_THAT(changed([](Job& job) {
                job.optimizer.nesterov = true;
                job.optimizer.momentum = 0;
              }),
              refuses("job.yaml: optimizer.nesterov is true and optimizer.momentum 0; "
                      "write e.g. optimizer.momentum: 0.9"));
}

TEST(Validate, WhatIsOfSgdIsNotForOthers) {
  for (const auto& [kind, name] : {std::pair{Algorithm::AdamW, "adamw"}, std::pair{Algorithm::Lamb, "lamb"}}) {
    const auto with = [kind = kind](bool Optimizer::*flag) {
      return changed([=](Job& job) {
        job.optimizer.kind = kind;
        job.optimizer.*flag = true;
      });
    };
    EXPECT_THAT(with(&Optimizer::nesterov),
                refuses(HasSubstr(std::string("optimizer.nesterov is true and optimizer.kind ") + name)));
    EXPECT_THAT(with(&Optimizer::decoupled),
                refuses(HasSubstr(std::string("optimizer.decoupled is true and optimizer.kind ") + name)));
  }
}

TEST(Validate, MilestonesBelongToTheStepSchedule) {
  EXPECT_THAT(changed([](Job& job) {
                job.schedule.kind = Decay::Cosine;
                job.schedule.milestones = {30};
              }),
              refuses("job.yaml: schedule.milestones are only for schedule.kind: step; remove them or write "
                      "schedule.kind: step"));
  EXPECT_THAT(changed([](Job& job) { job.schedule.kind = Decay::Step; }),
              refuses("job.yaml: schedule.kind is step without schedule.milestones; "
                      "write e.g. schedule.milestones: [30, 60, 80]"));
}

TEST(Validate, MilestonesIncrease) {
  EXPECT_THAT(changed([](Job& job) {
                job.schedule.kind = Decay::Step;
                job.schedule.milestones = {30, 60, 60};
              }),
              refuses("job.yaml: schedule.milestones must increase; 60 comes after 60"));
}

TEST(Validate, GeneratedDataHasSamples) {
  EXPECT_THAT(changed([](Job& job) { job.data.kind = DataKind::Generated; }),
              refuses("job.yaml: data.kind is generated and data.train_samples 0; "
                      "write e.g. data.train_samples: 5000"));
}

TEST(Validate, FilesAreNamedAndFitTheModel) {
  const auto from_files = [](const std::function<void(Job&)>& change) {
    return changed([=](Job& job) {
      job.data.kind = DataKind::OfRecord;
      job.data.train = "set";
      change(job);
    });
  };
  EXPECT_NO_THROW(from_files([](Job&) {})());
  EXPECT_THAT(from_files([](Job& job) { job.data.train = ""; }),
              refuses("job.yaml: data.kind is ofrecord without data.train; write e.g. data.train: path/to/train"));
  EXPECT_THAT(from_files([](Job& job) { job.model.channels = 2; }),
              refuses("job.yaml: model.channels is 2 and data.kind ofrecord; pictures have 3 channels, or 1"));
  EXPECT_THAT(from_files([](Job& job) {
                job.data.std = {1, 2};
              }),
              refuses("job.yaml: data.std has 2 numbers and model.channels is 3; write one for each channel"));
  EXPECT_THAT(from_files([](Job& job) {
                job.data.train_transform.min_area = 1;
                job.data.train_transform.max_area = 0.5;
              }),
              refuses("job.yaml: data.train_transform.min_area is 1 and max_area 0.5; write e.g. 0.08 and 1"));
  EXPECT_THAT(from_files([](Job& job) { job.data.test_transform.min_aspect = 2; }),
              refuses(HasSubstr("data.test_transform.min_aspect is 2 and max_aspect 1.333")));
  EXPECT_THAT(from_files([](Job& job) { job.data.ahead = 0; }), refuses(HasSubstr("data.ahead is 0")));
}

TEST(Validate, TextGoesWithModelsThatReadIt) {
  const auto text = [](const std::string& model, DataKind kind, const std::string& vocab) {
    return changed([=](Job& job) {
      job.model.name = model;
      job.data.kind = kind;
      job.data.train = "train.tsv";
      job.data.vocab = vocab;
    });
  };
  EXPECT_NO_THROW(text("bert_base", DataKind::TsvText, "vocab.txt")());
  EXPECT_THAT(text("bert_base", DataKind::TsvText, ""),
              refuses("job.yaml: data.kind is tsv_text without data.vocab; write e.g. data.vocab: vocab.txt"));
  EXPECT_THAT(text("bert_base", DataKind::Cifar10, "vocab.txt"), refuses(HasSubstr("write data.kind: tsv_text")));
  EXPECT_THAT(text("resnet18", DataKind::TsvText, "vocab.txt"), refuses(HasSubstr("write model.name: bert_base")));
  EXPECT_THAT(text("bert_base", DataKind::Squad, "vocab.txt"),
              refuses("job.yaml: data.kind is squad and model.name bert_base without model.head: span; "
                      "write model.head: span"));
  EXPECT_THAT(text("bag_of_tokens", DataKind::Squad, "vocab.txt"),
              refuses(HasSubstr("write model.name: bert_base and model.head: span")));
  EXPECT_THAT(text("resnet18", DataKind::Squad, "vocab.txt"),
              refuses(HasSubstr("write model.name: bert_base and model.head: span")));
  EXPECT_NO_THROW(text("bert_base", DataKind::Synthetic, "")());
}

TEST(Validate, LanguageModelsReadFilesOfTokens) {
  const auto tokens = [](const std::string& model, DataKind kind) {
    return changed([=](Job& job) {
      job.model.name = model;
      job.data.kind = kind;
      job.data.train = "train.bin";
    });
  };
  EXPECT_NO_THROW(tokens("gpt2", DataKind::TokenFile)()) << "no vocabulary is needed";
  EXPECT_NO_THROW(tokens("gpt2", DataKind::Synthetic)());
  EXPECT_THAT(tokens("gpt2", DataKind::TsvText), refuses(HasSubstr("write data.kind: token_file")));
  EXPECT_THAT(tokens("gpt2", DataKind::Cifar10), refuses(HasSubstr("write data.kind: token_file")));
  EXPECT_THAT(tokens("bert_base", DataKind::TokenFile), refuses(HasSubstr("write model.name: gpt2")));
  EXPECT_THAT(tokens("resnet18", DataKind::TokenFile), refuses(HasSubstr("write model.name: gpt2")));
  EXPECT_THAT(changed([](Job& job) { job.data.token_bytes = 3; }),
              refuses("job.yaml: data.token_bytes is not one of 2, 4"));
}

TEST(Validate, SpansAreForBertAndQuestions) {
  const auto span = [](const std::function<void(Job&)>& change) {
    return changed([=](Job& job) {
      job.model.name = "bert_base";
      job.model.head = Head::Span;
      job.model.tokens = 384;
      job.data.kind = DataKind::Squad;
      job.data.train = "train.json";
      job.data.vocab = "vocab.txt";
      change(job);
    });
  };
  EXPECT_NO_THROW(span([](Job&) {})());
  EXPECT_NO_THROW(span([](Job& job) { job.data.kind = DataKind::Synthetic; })());
  EXPECT_THAT(span([](Job& job) { job.data.kind = DataKind::TsvText; }),
              refuses("job.yaml: model.head is span and data.kind tsv_text; it answers questions: "
                      "write data.kind: squad"));
  EXPECT_THAT(span([](Job& job) { job.model.name = "resnet18"; }),
              refuses("job.yaml: model.head is span and model.name resnet18; only BERT has such a head: "
                      "write model.name: bert_base"));
  EXPECT_THAT(span([](Job& job) { job.data.vocab = ""; }), refuses(HasSubstr("without data.vocab")));
  EXPECT_THAT(span([](Job& job) { job.model.tokens = 195; }),
              refuses("job.yaml: model.tokens is 195, data.max_question 64 and data.doc_stride 128; windows of a text "
                      "would not advance: write model.tokens: 196 or more, or a smaller data.doc_stride"));
  EXPECT_NO_THROW(span([](Job& job) { job.model.tokens = 196; })());
  EXPECT_THAT(span([](Job& job) { job.data.max_answer = 0; }), refuses(HasSubstr("data.max_answer is 0")));
}

TEST(Validate, ARunHasAnEnd) {
  EXPECT_THAT(changed([](Job& job) {
                job.steps = 0;
                job.epochs = 0;
              }),
              refuses("job.yaml: steps and epochs are both 0; write e.g. epochs: 1"));
}

TEST(Validate, EpochsNeedDataWithALength) {
  EXPECT_THAT(changed([](Job& job) { job.steps = 0; }),
              refuses("job.yaml: synthetic data has no length to count epochs by; "
                      "write e.g. steps: 100, or data.train_samples"));
  EXPECT_NO_THROW(changed([](Job& job) {
    job.steps = 0;
    job.data.train_samples = 10;
  })());
}

TEST(Validate, RangesHoldForJobsThatNoFileGave) {
  EXPECT_THAT(changed([](Job& job) { job.batch = 0; }), refuses("job.yaml: batch is 0; it must be at least 1"));
  EXPECT_THAT(changed([](Job& job) { job.model.dropout = 1; }), refuses(HasSubstr("it must be below 1")));
  EXPECT_THAT(changed([](Job& job) { job.model.name = "lenet"; }),
              refuses(HasSubstr("model.name is not one of alexnet, alexnet_small, ")));
}

TEST(Validate, TheInitialParametersAreAFile) {
  const auto with_init = [](const std::string& path) { return changed([=](Job& job) { job.model.init = path; }); };
  EXPECT_THAT(with_init("no/such.safetensors"),
              refuses("job.yaml: model.init: there is no file \"no/such.safetensors\""));
  EXPECT_THAT(with_init(testing::TempDir()), refuses(HasSubstr("is a directory; name a safetensors file")));

  const std::string path = testing::TempDir() + "validate_test" + std::to_string(::getpid());
  std::ofstream(path) << "x";
  EXPECT_NO_THROW(with_init(path)());
  std::filesystem::permissions(path, std::filesystem::perms::none);
  if (::geteuid() != 0) {  // root may read anything
    EXPECT_THAT(with_init(path), refuses(HasSubstr("cannot be opened: Permission denied")));
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace millrace::job
