#include "millrace/plan/freeze_rule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "millrace/model/model.h"

namespace millrace::plan {
namespace {

job::Elastic elastic(job::Freeze freeze, double alpha) {
  job::Elastic made;
  made.freeze = freeze;
  made.alpha = alpha;
  return made;
}

// As the paper writes it, of norms.
int published_rule(double alpha, int layers, int frozen, const std::vector<double>& norms) {
  int smallest = frozen;
  for (int l = frozen; l <= layers; ++l) smallest = norms[l] < norms[smallest] ? l : smallest;
  int most = frozen;
  while (most < frozen + alpha * (layers - frozen) - 1e-9) ++most;
  return std::min(most, smallest);
}

TEST(FreezeRule, FollowsTheSchedule) {
  const job::Elastic third = elastic(job::Freeze::Schedule, 1. / 3);
  FreezeState state;
  std::vector<int> course;
  for (int interval = 0; interval < 9; ++interval) {
    decide_freezing(third, 12, {}, {}, state);
    apply_freezing(state);
    course.push_back(state.frozen);
  }
  EXPECT_EQ(course, (std::vector{4, 7, 9, 10, 11, 11, 12, 12, 12}));
}

TEST(FreezeRule, EqualsTheRuleOnNorms) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 500; ++trial) {
    const int layers = 1 + static_cast<int>(random() % 24);
    const double alpha = std::vector{1. / 2, 2. / 5, 1. / 3, 1. / 4, 1. / 5}[random() % 5];
    FreezeState state;
    for (int interval = 0; interval < 10; ++interval) {
      std::vector<double> squares, norms;
      for (int l = 0; l <= layers; ++l) {
        norms.push_back(l < state.frozen ? 0 : 0.1 + static_cast<double>(random() % 1000));
        squares.push_back(norms.back() * norms.back());
      }
      const int expected = published_rule(alpha, layers, state.frozen, norms);
      const FreezeDecision decision =
          decide_freezing(elastic(job::Freeze::Gradient, alpha), layers, {}, squares, state);
      ASSERT_EQ(decision.frozen, expected) << decision.why;
      apply_freezing(state);
    }
  }
}

TEST(FreezeRule, TheHeadIsNeverFrozen) {
  FreezeState state;
  decide_freezing(elastic(job::Freeze::Gradient, 0.999), 3, {}, {4, 3, 2, 1}, state);
  EXPECT_EQ(state.next, 3);
}

TEST(FreezeRule, TheFirstLayerThatLearnsMayBeTheOneThatLearnsLeast) {
  FreezeState state;
  state.frozen = 2;
  const FreezeDecision decision = decide_freezing(elastic(job::Freeze::Gradient, 0.5), 4, {}, {0, 0, 1, 2, 3}, state);
  EXPECT_EQ(decision.frozen, 2);
  EXPECT_NE(decision.why.find("layer 3"), std::string::npos) << decision.why;
}

TEST(FreezeRule, AGuardTakesTheLastFreezingBackAndWaits) {
  job::Elastic guarded = elastic(job::Freeze::Schedule, 1. / 3);
  guarded.guard = 0.1;
  FreezeState state;
  const auto decide = [&](double test_loss) {
    judge_freezing(test_loss, state);
    const FreezeDecision decision = decide_freezing(guarded, 12, {}, {}, state);
    apply_freezing(state);
    return decision.frozen;
  };
  EXPECT_EQ(decide(1.0), 4);
  EXPECT_EQ(decide(0.9), 7);
  EXPECT_EQ(decide(1.0), 4) << "0.99 is allowed";
  EXPECT_EQ(decide(1.0), 4) << "not recovered";
  EXPECT_EQ(decide(0.95), 11) << "recovered: the schedule goes on where it is by now";
}

// Decisions are taken before the evaluation of their boundary: what is known is of the boundary before.
TEST(FreezeRule, AGuardTakesBackTheFreezingOfWhichTheLossIs) {
  job::Elastic guarded = elastic(job::Freeze::Schedule, 1. / 3);
  guarded.guard = 0.1;
  FreezeState state;
  const auto interval = [&](double test_loss) {
    decide_freezing(guarded, 12, {}, {}, state);
    judge_freezing(test_loss, state);  // of the weights as they were until now
    apply_freezing(state);
    return state.frozen;
  };
  EXPECT_EQ(interval(1.0), 4);
  EXPECT_EQ(interval(1.2), 7) << "not known yet: 4 layers made it worse";
  EXPECT_EQ(interval(1.3), 0) << "those 4, and the 3 that were frozen since";
  EXPECT_EQ(interval(1.3), 0) << "not recovered; the loss is that of 7 layers";
  EXPECT_EQ(interval(0.9), 0) << "the same";
  EXPECT_EQ(interval(0.9), 11) << "recovered: the schedule goes on where it is by now";
}

TEST(FreezeRule, ALossThatIsNoNumberIsTooMuch) {
  job::Elastic guarded = elastic(job::Freeze::Schedule, 0.5);
  guarded.guard = 0.1;
  FreezeState state;
  state.frozen = 6;
  judge_freezing(1, state);
  judge_freezing(std::nan(""), state);
  EXPECT_EQ(decide_freezing(guarded, 12, {}, {}, state).frozen, 0);
  EXPECT_EQ(state.best_loss, 1);
}

TEST(FreezeRule, LayersTakeTheirParametersSquares) {
  job::Job job;
  job.model.name = "vit_s_16";
  job.model.layers = 2;
  job.model.image_size = 32;
  const graph::Graph graph = model::training_graph(job, 1);
  ASSERT_EQ(graph::num_layers(graph), 2);
  const std::vector<double> squares = layer_squares(graph, std::vector<float>(graph.params.size(), 1.0f));
  ASSERT_EQ(squares.size(), 3u);
  double expected[3] = {0, 0, 0};
  for (const graph::Param& param : graph.params) {
    const bool first = param.name.starts_with("vit.embeddings") || param.name.starts_with("vit.encoder.layer.0.");
    ++expected[first ? 0 : param.name.starts_with("vit.encoder.layer.1.") ? 1 : 2];
  }
  for (int l = 0; l < 3; ++l) EXPECT_EQ(squares[l], expected[l]) << "layer " << l;
}

TEST(FreezeRule, DecisionsComeALittleBeforeTheirBoundary) {
  job::Elastic every_epoch = elastic(job::Freeze::Gradient, 0.5);
  const auto at = [&](int64_t from) { return next_decision(every_epoch, 100, 250, from); };
  ASSERT_TRUE(at(0));
  EXPECT_EQ(at(0)->boundary, 100);
  EXPECT_EQ(at(0)->at, 94);
  EXPECT_EQ(at(94)->boundary, 100) << "a run that goes on at the decision takes it";
  EXPECT_EQ(at(95)->boundary, 200) << "a run that goes on behind it has taken it";
  EXPECT_FALSE(at(195)) << "the last epoch ends the run";
  EXPECT_EQ(next_decision(every_epoch, 1000, 2500, 0)->at, 950);
  every_epoch.freeze = job::Freeze::Schedule;
  EXPECT_EQ(at(0)->at, 75) << "nothing that is still to come is needed";
  every_epoch.guard = 0.1;
  EXPECT_EQ(at(0)->at, 94);
  every_epoch.every = {job::Period::Unit::Steps, 1};
  EXPECT_EQ(at(1)->at, 1) << "too short to prepare anything ahead";
  EXPECT_EQ(at(0)->at, 1);
}

}  // namespace
}  // namespace millrace::plan
