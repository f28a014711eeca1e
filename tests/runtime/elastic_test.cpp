// Trainings that follow one another in one run: the state goes on from each to the next, whatever their plans are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "millrace/backend/cuda/cuda_backend.h"
#include "millrace/job/lr_schedule.h"
#include "millrace/model/model.h"
#include "millrace/runtime/succession.h"
#include "runtime/training_harness.h"

namespace millrace::runtime {
namespace {

using job::Mode;

job::Job vit_job() {
  job::Job job = small_job();
  job.model = small_vit(16, 12, 3);
  job.model.layers = 4;
  job.optimizer.kind = job::Algorithm::AdamW;
  job.optimizer.lr = 0.002;
  job.parallel.microbatches = 2;
  job.steps = 14;
  return job;
}

job::Parallel plan(Mode mode, const std::string& placement) {
  job::Parallel parallel;
  parallel.mode = mode;
  parallel.placement = placement;
  parallel.microbatches = 2;
  return parallel;
}

struct ElasticRun {
  state::State state;
  TrainingResult result;
  std::vector<double> losses;
  std::map<int64_t, std::map<int64_t, int>> seen;  // by epoch
  std::vector<Transition> transitions;
  std::vector<Stretch> stretches;
  std::vector<std::string> notes;
  std::vector<int> kept;  // layers, as each planning was told
  int64_t fetched = 0;    // rows of the last training whose frozen layers were not computed
  cache::CacheCounts counts;
};

// `plans`: of the first training, the second, ...; the last stays. `always`: see PrefixCaches.
ElasticRun run_elastic(job::Job job, const std::vector<job::Parallel>& plans, bool always = true) {
  ElasticRun ran;
  const auto process = comm::make_local_process();
  job.parallel = plans[0];
  std::shared_ptr<PrefixCaches> caches;
  if (job.elastic.cache) {
    caches = std::make_shared<PrefixCaches>(
        job, job.data.train_samples, [&](const std::string&) {}, always);
  }
  size_t next = 0;
  const Succession::Planner planner = [&](const job::Job& now, int frozen, int kept) {
    NextPlan made;
    made.job = now;
    made.predicted_step_s = 0.0015;
    if (job.elastic.cache) made.predicted_filling_s = 0.0025;
    ran.kept.push_back(kept);
    made.job.model.frozen = frozen;
    next = std::min(next + 1, plans.size() - 1);
    made.job.parallel = plans[next];
    return made;
  };
  plan::FreezeState freezing;
  freezing.frozen = job.model.frozen;
  Succession succession(
      std::make_unique<Training>(job, *process, MachineLimit{}, OnMeasure(), StateReader(), Parameters::Now,
                                 caches ? caches->next(job.model.frozen, 0) : nullptr),
      job, *process, {}, planner, freezing, caches);
  const auto epoch_steps = static_cast<int64_t>(succession.training().steps_per_epoch());
  std::mutex mutex;
  Observer observer;
  observer.on_step = [&](const StepReport& step) { ran.losses.push_back(step.metrics.loss()); };
  observer.on_note = [&](const std::string& note) { ran.notes.push_back(note); };
  observer.on_samples = [&](int64_t step, std::span<const int64_t> samples) {
    const std::lock_guard lock(mutex);
    for (int64_t sample : samples) ++ran.seen[step / epoch_steps][sample];
  };
  ran.result = succession.run(observer);
  ran.state = succession.training().state();
  ran.transitions = succession.transitions();
  ran.stretches = succession.stretches();
  for (size_t i = 0; i < succession.training().num_workers(); ++i) {
    ran.fetched += succession.training().worker(i).rows_fetched();
  }
  if (caches) ran.counts = caches->counts();
  return ran;
}

// Nothing freezes, but from step 5 on another plan trains.
TEST(Elastic, AnotherPlanGoesOnWithTheSameBits) {
  const job::Job job = vit_job();
  const RunResult whole = run(job);
  for (const auto& [first, second] : std::vector<std::pair<job::Parallel, job::Parallel>>{
           {plan(Mode::Dp, "0:0"), plan(Mode::OneFOneB, "0:0.0:1")},
           {plan(Mode::OneFOneB, "0:0.0:1.0:2.0:3"), plan(Mode::OneFOneB, "0:0.0:1")},
           {plan(Mode::GPipe, "0:0.0:1.0:2"), plan(Mode::Dp, "0:0")}}) {
    std::vector<double> losses;
    Observer observer;
    observer.on_step = [&](const StepReport& step) { losses.push_back(step.metrics.loss()); };
    observer.hands_over_at = [] { return int64_t{5}; };
    job::Job one = job, two = job;
    one.parallel = first;
    two.parallel = second;
    const auto process = comm::make_local_process(), other = comm::make_local_process();
    Training before(one, *process, {});
    const TrainingResult result = before.run(observer);
    EXPECT_TRUE(result.handed_over);
    EXPECT_EQ(result.steps, 5);
    Training after(two, *other, {}, {}, {}, Parameters::Later);
    after.take_over(before);
    observer.hands_over_at = [] { return int64_t{-1}; };
    EXPECT_FALSE(after.run(observer).handed_over);
    EXPECT_EQ(losses, whole.losses);
    EXPECT_TRUE(after.state() == whole.state);
  }
}

TEST(Elastic, FreezingFollowsOneCourseOnEveryTopology) {
  for (const job::Freeze freeze : {job::Freeze::Schedule, job::Freeze::Gradient}) {
    SCOPED_TRACE(static_cast<int>(freeze));
    job::Job job = vit_job();
    job.elastic.freeze = freeze;
    job.elastic.alpha = 0.5;
    job.elastic.every = {job::Period::Unit::Steps, 4};
    const ElasticRun alone = run_elastic(job, {plan(Mode::Dp, "0:0")});
    ASSERT_EQ(alone.losses.size(), 14u);
    if (freeze == job::Freeze::Schedule) {
      ASSERT_EQ(alone.transitions.size(), 3u);
      EXPECT_EQ(alone.stretches[1].frozen, 2);
      EXPECT_EQ(alone.stretches[2].frozen, 3);
      EXPECT_EQ(alone.stretches[3].frozen, 4);
      EXPECT_EQ(alone.transitions[0].step, 4);
    }
    const std::vector<std::vector<job::Parallel>> courses = {
        {plan(Mode::OneFOneB, "0:0.0:1")},
        {plan(Mode::OneFOneB, "0:0.0:1.0:2.0:3")},
        {plan(Mode::OneFOneB, "0:0.0:1.0:2.0:3"), plan(Mode::OneFOneB, "0:0.0:1"), plan(Mode::Dp, "0:0")}};
    for (const auto& course : courses) {
      const ElasticRun many = run_elastic(job, course);
      EXPECT_EQ(many.losses, alone.losses);
      EXPECT_TRUE(many.state == alone.state);
      ASSERT_EQ(many.transitions.size(), alone.transitions.size());
      for (size_t i = 0; i < many.transitions.size(); ++i) {
        EXPECT_EQ(many.stretches[i + 1].frozen, alone.stretches[i + 1].frozen);
        EXPECT_EQ(many.transitions[i].squares, alone.transitions[i].squares);
      }
    }
    job.optimizer.kind = job::Algorithm::Sgd;  // AdamW makes whole steps of rounding
    const ElasticRun sgd = run_elastic(job, {plan(Mode::Dp, "0:0")});
    for (const auto& course : {std::vector{plan(Mode::OneFOneB, "0:0-1.0:2-3")},
                               std::vector{plan(Mode::OneFOneB, "0:0.0:1.0:2.0:3"), plan(Mode::OneFOneB, "0:0-1.0:2-3"),
                                           plan(Mode::Dp, "0:0-3")}}) {
      EXPECT_LT(largest_difference(run_elastic(job, course).state, sgd.state), 1e-6);
    }
  }
}

TEST(Elastic, DecisionsAreTheRuleOnTheRecordedNorms) {
  job::Job job = vit_job();
  job.steps = 30;
  job.elastic.freeze = job::Freeze::Gradient;
  job.elastic.alpha = 0.5;
  job.elastic.every = {job::Period::Unit::Steps, 5};
  const ElasticRun ran = run_elastic(job, {plan(Mode::OneFOneB, "0:0.0:1")});
  ASSERT_GE(ran.transitions.size(), 1u);
  int frozen = 0;
  for (size_t i = 0; i < ran.transitions.size(); ++i) {
    const Transition& transition = ran.transitions[i];
    ASSERT_EQ(transition.squares.size(), 5u);
    for (int layer = frozen; layer <= 4; ++layer) EXPECT_GT(transition.squares[layer], 0) << layer;
    int smallest = frozen;
    for (int layer = frozen; layer <= 4; ++layer) {
      if (transition.squares[layer] < transition.squares[smallest]) smallest = layer;
    }
    const int most = frozen + static_cast<int>(std::ceil(0.5 * (4 - frozen)));
    EXPECT_EQ(ran.stretches[i + 1].frozen, std::min(smallest, most));
    frozen = ran.stretches[i + 1].frozen;
  }
}

TEST(Elastic, EverySampleComesOnceAnEpoch) {
  job::Job job = vit_job();
  job.elastic.freeze = job::Freeze::Schedule;
  job.elastic.alpha = 0.5;
  job.elastic.every = {job::Period::Unit::Steps, 3};
  job.steps = 12;  // three epochs of 26 samples in batches of 8
  const ElasticRun ran = run_elastic(
      job, {plan(Mode::OneFOneB, "0:0.0:1.0:2.0:3"), plan(Mode::OneFOneB, "0:0-1.0:2-3"), plan(Mode::Dp, "0:0-3")});
  ASSERT_EQ(ran.seen.size(), 3u);
  for (const auto& [epoch, samples] : ran.seen) {
    EXPECT_EQ(samples.size(), 26u) << epoch;
    for (const auto& [sample, times] : samples) EXPECT_EQ(times, 1) << "sample " << sample << " in epoch " << epoch;
  }
  EXPECT_EQ(ran.result.samples, 3 * 26);
  EXPECT_EQ(ran.result.own_steps, 12);
}

// 26 samples: epochs of four steps of 8, then of two of 16, then one of 32.
TEST(Elastic, ABatchThatGrowsKeepsEpochsAndRates) {
  job::Job job = vit_job();
  job.steps = 0;
  job.epochs = 5;
  job.schedule.kind = job::Decay::Cosine;
  job.schedule.warmup_epochs = 0.5;
  job.elastic.freeze = job::Freeze::Schedule;
  job.elastic.alpha = 0.4;
  const auto process = comm::make_local_process();
  const Succession::Planner doubles = [](const job::Job& now, int frozen, int) {
    NextPlan next;
    next.job = now;
    next.job.model.frozen = frozen;
    if (now.batch < 32) next.job.batch = 2 * now.batch;
    return next;
  };
  Succession succession(std::make_unique<Training>(job, *process, MachineLimit{}), job, *process, {}, doubles, {});
  std::vector<StepReport> steps;
  std::map<int64_t, std::map<int64_t, int>> seen;  // by the step
  std::mutex mutex;
  Observer observer;
  observer.on_step = [&](const StepReport& step) { steps.push_back(step); };
  observer.on_samples = [&](int64_t step, std::span<const int64_t> samples) {
    const std::lock_guard lock(mutex);
    for (const int64_t sample : samples) ++seen[step][sample];
  };
  const TrainingResult result = succession.run(observer);
  ASSERT_EQ(result.steps, 4 + 2 + 1 + 1 + 1);
  EXPECT_EQ(result.samples, 5 * 26);
  const std::vector<double> ends{0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 5};
  std::map<int64_t, int> of_epoch;
  for (size_t i = 0; i < ends.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(steps[i].step, static_cast<int64_t>(i));
    EXPECT_DOUBLE_EQ(steps[i].epoch, ends[i]);
    for (const auto& [sample, times] : seen[static_cast<int64_t>(i)]) of_epoch[sample] += times;
    if (ends[i] != std::floor(ends[i])) continue;
    EXPECT_EQ(of_epoch.size(), 26u);
    for (const auto& [sample, times] : of_epoch) EXPECT_EQ(times, 1) << sample;
    of_epoch.clear();
  }
  // The rate is that of the epoch, whatever a step's size.
  for (size_t i = 3; i < steps.size(); ++i) {
    const int64_t per_epoch = i < 4 ? 4 : i < 6 ? 2 : 1;
    const double begins = i == 3 ? 0.75 : ends[i - 1];
    EXPECT_DOUBLE_EQ(steps[i].learning_rate, job::learning_rate(job.optimizer, job.schedule,
                                                                std::llround(begins * static_cast<double>(per_epoch)),
                                                                static_cast<double>(per_epoch), 5 * per_epoch));
  }
  EXPECT_EQ(steps.back().total_steps, 9);
  EXPECT_EQ(succession.stretches()[1].batch, 16);
}

// 26 samples in batches of 8: four steps an epoch.
void expect_kept_bit_by_bit(job::Device device) {
  for (const char* model : {"vit_b_16", "resnet_small", "alexnet_small"}) {
    SCOPED_TRACE(model);
    job::Job job = vit_job();
    const int size = std::string(model) == "resnet_small" ? 8 : 17;
    if (job.model.name != model) job.model = {.name = model, .classes = 10, .image_size = size, .dropout = 0.5};
    job.device = device;
    job.deterministic = device == job::Device::Cuda;
    job.optimizer.kind = job::Algorithm::Sgd;
    job.steps = 24;
    job.elastic.freeze = job::Freeze::Schedule;
    job.elastic.alpha = 0.4;
    const ElasticRun computed = run_elastic(job, {plan(Mode::Dp, "0:0")});
    job.elastic.cache = true;
    const ElasticRun kept = run_elastic(job, {plan(Mode::Dp, "0:0")});
    EXPECT_EQ(kept.losses, computed.losses);
    EXPECT_TRUE(kept.state == computed.state);
    EXPECT_EQ(kept.counts.corrupt, 0);
    EXPECT_GT(kept.counts.hits_memory, 2 * 26);
    EXPECT_GE(kept.transitions.size(), 2u);
    for (size_t i = 2; i < kept.stretches.size(); ++i) EXPECT_GT(kept.stretches[i].cached, 0.6) << i;
    const ElasticRun in_stages =
        run_elastic(job, {plan(Mode::OneFOneB, "0:0.0:1.0:2"), plan(Mode::OneFOneB, "0:0.0:1"), plan(Mode::Dp, "0:0")});
    EXPECT_EQ(in_stages.losses, computed.losses);
    EXPECT_TRUE(in_stages.state == computed.state);
  }
}

TEST(Elastic, WhatFrozenLayersMakeIsKeptBitByBit) { expect_kept_bit_by_bit(job::Device::Reference); }

TEST(CudaElastic, WhatFrozenLayersMakeIsKeptBitByBit) {
  if (backend::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  expect_kept_bit_by_bit(job::Device::Cuda);
}

// 26 samples in batches of 8, four steps an epoch, which is when layers freeze: 2, 3 and 4.
TEST(Elastic, APlanKnowsHowFullTheCacheWillBe) {
  job::Job job = vit_job();
  job.steps = 24;
  job.elastic.freeze = job::Freeze::Schedule;
  job.elastic.alpha = 0.5;
  job.elastic.cache = true;
  const ElasticRun ran = run_elastic(job, {plan(Mode::Dp, "0:0")});
  EXPECT_EQ(ran.kept, (std::vector<int>{0, 2, 3}));
  ASSERT_EQ(ran.transitions.size(), 3u);
  EXPECT_EQ(ran.transitions[2].kept, 3);
  for (const char* again : {"layers 1 to 2 are", "layer 4 is"}) {
    const std::string expected = fmt::format(
        "a step should now take 2.5 ms in the first epoch, in which {} computed once more, and 1.5 ms after it", again);
    EXPECT_THAT(ran.notes, testing::Contains(testing::HasSubstr(expected)));
  }
  // Half an epoch is not enough.
  job.elastic.every = {job::Period::Unit::Steps, 2};
  EXPECT_EQ(run_elastic(job, {plan(Mode::Dp, "0:0")}).kept, (std::vector<int>{0, 0, 0}));
}

TEST(Elastic, StepsThatFillTheCacheAndLaterOnesAreMeasuredApart) {
  job::Job job = vit_job();
  job.steps = 30 * 4;
  job.elastic.freeze = job::Freeze::Schedule;
  job.elastic.alpha = 0.9;
  const ElasticRun without = run_elastic(job, {plan(Mode::Dp, "0:0")});
  for (const Stretch& stretch : without.stretches) {
    EXPECT_EQ(stretch.filling_step_s, 0);
    EXPECT_EQ(stretch.filled_step_s, 0);
    EXPECT_GT(stretch.step_s, 0);
  }
  job.elastic.cache = true;
  const ElasticRun ran = run_elastic(job, {plan(Mode::Dp, "0:0")});
  ASSERT_EQ(ran.stretches.size(), 2u);
  EXPECT_EQ(ran.stretches[0].filling_step_s, 0) << "nothing is frozen yet";
  EXPECT_GT(ran.stretches[1].filling_step_s, 0);
  EXPECT_GT(ran.stretches[1].filled_step_s, 0);
  EXPECT_THAT(ran.notes,
              testing::Contains(testing::AllOf(testing::HasSubstr("step 28: a step after the first epoch takes"),
                                               testing::HasSubstr("(1.5 predicted)"))));
}

TEST(Elastic, LayersThatAreFrozenFromTheBeginningAreComputedOnce) {
  job::Job job = vit_job();
  job.model.frozen = 3;
  job.steps = 16;
  const RunResult computed = run(job);
  job.elastic.cache = true;
  const ElasticRun kept = run_elastic(job, {plan(Mode::Dp, "0:0")});
  EXPECT_EQ(kept.losses, computed.losses);
  EXPECT_TRUE(kept.state == computed.state);
  EXPECT_GE(kept.fetched, 2 * 26) << "of four epochs, at least the last two";
}

TEST(Elastic, WhatNobodyWillFetchIsNotStored) {
  job::Job job = vit_job();
  job.model.frozen = 3;
  job.elastic.cache = true;
  job.steps = 4;  // one epoch
  EXPECT_EQ(run_elastic(job, {plan(Mode::Dp, "0:0")}, /*always=*/false).counts.stored, 0);
  job.steps = 8;
  EXPECT_GE(run_elastic(job, {plan(Mode::Dp, "0:0")}, /*always=*/false).counts.stored, 8);
}

TEST(Elastic, ACacheThatIsTooSmallIsNotUsed) {
  job::Job job = vit_job();
  job.model.frozen = 3;
  job.steps = 8;
  const RunResult computed = run(job);
  job.elastic.cache = true;
  job.elastic.cache_gib = 20 * 4096. / (1 << 30);  // of 26 samples, each a page at least
  const ElasticRun run = run_elastic(job, {plan(Mode::Dp, "0:0")});
  EXPECT_EQ(run.losses, computed.losses);
  EXPECT_EQ(run.counts.stored, 0);
  job.elastic.cache_disk_gib = job.elastic.cache_gib;
  const ElasticRun spilled = run_elastic(job, {plan(Mode::Dp, "0:0")});
  EXPECT_EQ(spilled.losses, computed.losses);
  EXPECT_GT(spilled.counts.hits_disk, 0);
  EXPECT_GT(spilled.counts.hits_memory, 0);
}

TEST(Elastic, APlanThatCannotBeIsSaidAndTrainingGoesOn) {
  job::Job job = vit_job();
  job.elastic.freeze = job::Freeze::Schedule;
  job.elastic.every = {job::Period::Unit::Steps, 5};
  const auto process = comm::make_local_process();
  const Succession::Planner refuses = [](const job::Job&, int, int) -> NextPlan {
    throw std::invalid_argument("there is no room");
  };
  Succession succession(std::make_unique<Training>(job, *process, MachineLimit{}), job, *process, {}, refuses, {});
  Observer observer;
  std::vector<std::string> notes;
  observer.on_note = [&](const std::string& note) { notes.push_back(note); };
  EXPECT_EQ(succession.run(observer).steps, 14);
  EXPECT_TRUE(succession.transitions().empty());
  ASSERT_FALSE(notes.empty());
  EXPECT_EQ(notes[0], "layers 1 to 2 cannot be frozen: there is no room");
}

size_t entries_of(const char* directory) {
  const std::filesystem::directory_iterator begin(directory), end;
  return static_cast<size_t>(std::distance(begin, end));
}

size_t resident_pages() {
  std::ifstream file("/proc/self/statm");
  size_t all = 0, resident = 0;
  file >> all >> resident;
  return resident;
}

TEST(Elastic, AHundredTransitionsLeaveNothingBehind) {
  job::Job job = vit_job();
  job.elastic.freeze = job::Freeze::Schedule;
  job.elastic.alpha = 0.5;
  job.elastic.every = {job::Period::Unit::Steps, 4};
  job.elastic.cache = true;
  const std::vector<job::Parallel> plans = {plan(Mode::OneFOneB, "0:0.0:1.0:2.0:3"),
                                            plan(Mode::OneFOneB, "0:0-1.0:2-3"), plan(Mode::Dp, "0:0-3")};
  size_t files = 0, threads = 0, pages = 0, transitions = 0;
  for (int again = 0; transitions < 110; ++again) {
    transitions += run_elastic(job, plans).transitions.size();
    if (again > 2) continue;  // what libraries keep, they have by now
    files = entries_of("/proc/self/fd");
    threads = entries_of("/proc/self/task");
    pages = resident_pages();
  }
  EXPECT_EQ(entries_of("/proc/self/fd"), files);
  EXPECT_LE(entries_of("/proc/self/task"), threads);
#ifdef NDEBUG  // sanitizers keep what was freed for a while
  EXPECT_LT(resident_pages(), pages + (32 << 20) / 4096);
#endif
}

}  // namespace
}  // namespace millrace::runtime
