#include "millrace/runtime/checkpoint_keeper.h"

#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "runtime/training_harness.h"
#include "state/temporary_folder.h"

namespace millrace::runtime {
namespace {

namespace fs = std::filesystem;

// Process 0's side of saving, with evaluations that the test makes up.
class KeeperTest : public state::TemporaryFolder {
 protected:
  void SetUp() override {
    TemporaryFolder::SetUp();
    facts_.job = small_job();
    facts_.job.checkpoint.keep = 2;
    facts_.job_text = "name: small\n";
    facts_.plan.pipeline = schedule::chain(job::Mode::Dp, 1, 1);
    facts_.train_data = data::make_dataset(facts_.job, data::Split::Train);
    facts_.calendar.steps_per_epoch = 4;
    observer_.checkpoints = folder_;
    observer_.on_note = [this](const std::string& note) { notes_.push_back(note); };
  }

  static Metrics evaluation(double loss, double top1) { return {100 * loss, 100 * top1, 100, 100, {}}; }
  // The only worker has written its part.
  void write_part(CheckpointKeeper& keeper, int64_t step) const {
    state::State state;
    state.params["weight"] = {{1}, {static_cast<float>(step)}};
    state.updates["weight"] = step;
    const fs::path pending = state::CheckpointStore(folder_).pending(step);
    state::write_shard_list(pending, 0, state::write_shards(pending, 0, state));
    keeper.take({step, 0, comm::Event::Kind::Saved, {}, {}, {}});
    while (keeper.is_saving()) {
      keeper.look_after();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  void evaluate_and_save(CheckpointKeeper& keeper, int64_t step, const Metrics& metrics) const {
    const bool is_best = keeper.take_evaluation(metrics);
    ASSERT_TRUE(keeper.begin(step, 8 * step, is_best, /*evaluation_due=*/false));
    write_part(keeper, step);
  }
  int64_t best_step() const {
    const auto best = state::CheckpointStore(folder_).best();
    if (!best) return -1;
    EXPECT_TRUE(state::verify(*best).empty()) << *best;
    return state::step_of(*best).value_or(-1);
  }

  RunFacts facts_;
  Observer observer_;
  std::vector<std::string> notes_;
};

struct Course {
  const char* name;
  job::Best by;
  double sign, offset;  // what is judged is offset + sign * (how good it is)
};

class BestKept : public KeeperTest, public testing::WithParamInterface<Course> {
 protected:
  // What is not judged gets worse all the time.
  Metrics made(double good, int64_t step) const {
    const double judged = GetParam().offset + GetParam().sign * good, other = static_cast<double>(step);
    return GetParam().by == job::Best::Loss ? evaluation(judged, 1 - other / 100) : evaluation(other, judged);
  }
};

TEST_P(BestKept, ApartFromTheNewestUntilThereIsABetterOne) {
  facts_.job.checkpoint.best = GetParam().by;
  const state::CheckpointStore store(folder_);
  {
    CheckpointKeeper keeper(facts_, observer_, {0});
    struct Evaluated {
      double good;
      int64_t best;
    };
    int64_t step = 0;
    // Equal is not better.
    for (const auto& [good, best] :
         std::vector<Evaluated>{{.2, 1}, {.5, 2}, {.4, 2}, {.5, 2}, {.6, 5}, {.1, 5}, {.3, 5}}) {
      ++step;
      SCOPED_TRACE(step);
      ASSERT_NO_FATAL_FAILURE(evaluate_and_save(keeper, step, made(good, step)));
      EXPECT_EQ(best_step(), best);
    }
    EXPECT_EQ(store.list(), (std::vector{store.path(6), store.path(7)}));
    const auto figures = state::read_manifest(*store.best()).figures;
    const double judged = figures.at(GetParam().by == job::Best::Loss ? "loss" : "top1");
    EXPECT_DOUBLE_EQ(judged, GetParam().offset + GetParam().sign * .6);
  }
  facts_.first_step = 7;
  CheckpointKeeper resumed(facts_, observer_, {0});
  ASSERT_NO_FATAL_FAILURE(evaluate_and_save(resumed, 8, made(.55, 8)));
  EXPECT_EQ(best_step(), 5) << "one that goes on knows the best there is";
  ASSERT_NO_FATAL_FAILURE(evaluate_and_save(resumed, 9, made(.7, 9)));
  EXPECT_EQ(best_step(), 9);
  EXPECT_TRUE(notes_.empty());
}

INSTANTIATE_TEST_SUITE_P(By, BestKept,
                         testing::Values(Course{"Top1", job::Best::Top1, 1, 0}, Course{"Loss", job::Best::Loss, -1, 3}),
                         [](const auto& course) { return course.param.name; });

TEST_F(KeeperTest, ABestThatWasLeftOutIsNoMeasureForOthers) {
  facts_.job.checkpoint.best = job::Best::Top1;
  CheckpointKeeper keeper(facts_, observer_, {0});
  ASSERT_TRUE(keeper.take_evaluation(evaluation(1, .2)));
  ASSERT_TRUE(keeper.begin(1, 8, /*is_best=*/true, false));
  ASSERT_FALSE(keeper.take_evaluation(evaluation(1, .1))) << "worse than the one that is being written";
  ASSERT_TRUE(keeper.take_evaluation(evaluation(1, .6)));
  ASSERT_FALSE(keeper.begin(2, 16, /*is_best=*/true, false)) << "that of step 1 is still being written";
  write_part(keeper, 1);
  EXPECT_EQ(best_step(), 1);
  ASSERT_NO_FATAL_FAILURE(evaluate_and_save(keeper, 3, evaluation(1, .5)));
  EXPECT_EQ(best_step(), 3);
}

TEST_F(KeeperTest, ALossThatIsNoNumberIsNotTheBest) {
  facts_.job.checkpoint.best = job::Best::Loss;
  CheckpointKeeper keeper(facts_, observer_, {0});
  EXPECT_FALSE(keeper.take_evaluation(evaluation(std::numeric_limits<double>::quiet_NaN(), .2)));
  EXPECT_TRUE(keeper.take_evaluation(evaluation(2, .2)));
}

// Asked to end before its evaluation, gone on with, and then the best.
TEST_F(KeeperTest, OneThatIsFoundTheBestLaterIsWrittenAgain) {
  facts_.job.checkpoint.best = job::Best::Loss;
  {
    CheckpointKeeper keeper(facts_, observer_, {0});
    ASSERT_TRUE(keeper.begin(4, 32, /*is_best=*/false, /*evaluation_due=*/true));
    write_part(keeper, 4);
  }
  const state::CheckpointStore store(folder_);
  EXPECT_TRUE(state::read_state(store.path(4), state::read_manifest(store.path(4))).evaluation_due);
  facts_.first_step = 4;
  CheckpointKeeper keeper(facts_, observer_, {0});
  ASSERT_NO_FATAL_FAILURE(evaluate_and_save(keeper, 4, evaluation(2, .2)));
  EXPECT_EQ(best_step(), 4);
  for (const fs::path& path : {store.path(4), *store.best()}) {
    EXPECT_FALSE(state::read_manifest(path).evaluation_due) << path;
    EXPECT_EQ(state::read_manifest(path).figures.at("loss"), 2) << path;
  }
  EXPECT_FALSE(keeper.begin(4, 32, /*is_best=*/false, false)) << "it is there already";
}

}  // namespace
}  // namespace millrace::runtime
