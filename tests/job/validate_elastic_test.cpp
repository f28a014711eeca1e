#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>

#include "millrace/job/reader.h"
#include "millrace/job/validate.h"

namespace millrace::job {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

std::function<void()> elastic(const std::function<void(Job&)>& change) {
  return [=] {
    Job job;
    job.steps = 10;
    job.data.kind = DataKind::Generated;
    job.data.train_samples = 100;
    job.elastic.freeze = Freeze::Gradient;
    change(job);
    validate(job, "job.yaml");
  };
}

auto refuses(const std::string& message) { return ThrowsMessage<std::invalid_argument>(HasSubstr(message)); }

// Each of the four switches, alone and together, runs or says what it lacks.
TEST(ValidateElastic, AllSixteenCombinationsRunOrAreRefusedWithAReason) {
  int run = 0;
  for (int bits = 0; bits < 16; ++bits) {
    const bool freeze = bits & 1, pipe = bits & 2, dp = bits & 4, cache = bits & 8;
    SCOPED_TRACE(testing::Message() << "freeze " << freeze << " pipe " << pipe << " dp " << dp << " cache " << cache);
    const auto validated = elastic([=](Job& job) {
      job.elastic.freeze = freeze ? Freeze::Gradient : Freeze::Off;
      job.elastic.pipe = pipe;
      job.elastic.dp = dp;
      job.elastic.cache = cache;
    });
    if (pipe && !freeze) {
      EXPECT_THAT(validated, refuses("elastic.pipe is on and elastic.freeze off"));
    } else if (dp && !pipe) {
      EXPECT_THAT(validated, refuses("elastic.dp is on and elastic.pipe off"));
    } else if (cache && !freeze) {
      EXPECT_THAT(validated, refuses("elastic.cache is on and nothing is frozen"));
    } else {
      EXPECT_NO_THROW(validated());
      ++run;
    }
  }
  EXPECT_EQ(run, 7);
}

TEST(ValidateElastic, FreezingNeedsStepsThatAllStagesHaveFinished) {
  EXPECT_THAT(elastic([](Job& job) {
                job.parallel.mode = Mode::Ssp;
                job.parallel.placement = "0:0.0:1";
              }),
              refuses("elastic.freeze is gradient and parallel.mode ssp"));
  EXPECT_THAT(elastic([](Job& job) {
                job.elastic.every = {Period::Unit::Minutes, 5};
              }),
              refuses("must not depend on the clock"));
  EXPECT_THAT(elastic([](Job& job) { job.on_divergence = OnDivergence::Rollback; }), refuses("on_divergence: stop"));
  EXPECT_THAT(elastic([](Job& job) { job.elastic.guard = 0.1; }), refuses("no test data to judge by"));
  EXPECT_NO_THROW(elastic([](Job& job) {
    job.elastic.guard = 0.1;
    job.data.test_samples = 10;
  })());
  EXPECT_THAT(elastic([](Job& job) {
                job.elastic.guard = 0.1;
                job.data.test_samples = 10;
                job.eval.every_epochs = 0;
              }),
              refuses("the test loss is known at the end only; write eval.every_epochs: 1"));
}

TEST(ValidateElastic, ACacheNeedsRoomAndSamplesThatAreAllUsed) {
  EXPECT_THAT(elastic([](Job& job) {
                job.elastic.cache = true;
                job.elastic.cache_gib = 0;
              }),
              refuses("elastic.cache_gib: 2"));
  EXPECT_THAT(elastic([](Job& job) {
                job.elastic.cache = true;
                job.data.on_error = OnError::Skip;
              }),
              refuses("data.on_error: stop"));
  EXPECT_NO_THROW(elastic([](Job& job) {
    job.elastic.freeze = Freeze::Off;
    job.model.frozen = 3;
    job.elastic.cache = true;
  })());
}

TEST(ValidateElastic, ABatchGrowsWithReplicasAndEpochs) {
  const auto growing = [](const std::function<void(Job&)>& change) {
    return elastic([=](Job& job) {
      job.steps = 0;
      job.elastic.pipe = job.elastic.dp = job.elastic.grows = true;
      change(job);
    });
  };
  EXPECT_NO_THROW(growing([](Job&) {})());
  EXPECT_THAT(growing([](Job& job) { job.elastic.dp = false; }), refuses("elastic.batch is grow and elastic.dp off"));
  EXPECT_THAT(growing([](Job& job) { job.steps = 10; }), refuses("epochs instead of steps"));
  EXPECT_THAT(growing([](Job& job) { job.elastic.every.count = 0.5; }), refuses("elastic.every: 1 epoch"));
}

TEST(ValidateElastic, IsWrittenAsPeopleWriteIt) {
  const Job job =
      parse_job("steps: 1\nelastic: {freeze: schedule, alpha: 2/5, every: 0.5 epochs, pipe: on, dp: on, cache: on}\n",
                "job.yaml", {});
  EXPECT_EQ(job.elastic.freeze, Freeze::Schedule);
  EXPECT_DOUBLE_EQ(job.elastic.alpha, 0.4);
  EXPECT_TRUE(job.elastic.pipe && job.elastic.dp && job.elastic.cache);
  EXPECT_EQ(parse_job(to_yaml(job), "again.yaml", {}), job);
  const auto reading = [](const std::string& text) {
    return [=] { parse_job("steps: 1\nelastic: {" + text + "}\n", "job.yaml", {}); };
  };
  EXPECT_THAT(reading("alpha: 1"), refuses("elastic.alpha is 1; it must be above 0 and below 1"));
  EXPECT_THAT(reading("alpha: 1/0"),
              refuses("elastic.alpha: \"1/0\" is not a fraction; write e.g. elastic.alpha: 1/3"));
  EXPECT_THAT(reading("pipe: maybe"), refuses("elastic.pipe: \"maybe\" is neither on nor off"));
}

}  // namespace
}  // namespace millrace::job
