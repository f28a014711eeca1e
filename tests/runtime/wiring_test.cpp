// Who exchanges with whom, as it is known before any message.
#include "millrace/runtime/wiring.h"

#include <set>

#include "millrace/schedule/messages.h"
#include "runtime/training_harness.h"

namespace millrace::runtime {
namespace {

using Pairs = std::vector<std::pair<int, int>>;

job::Job spread(job::Mode mode, const std::string& placement, job::Replicas replicas = job::Replicas::Split) {
  job::Job job = small_job();
  job.parallel.mode = mode;
  job.parallel.placement = placement;
  job.parallel.replicas = replicas;
  return job;
}

Pairs pairs_of(const job::Job& job) {
  const auto process = comm::make_local_process();
  const Training training(job, *process, {});
  const Pairs pairs = Wiring(training.plan(), 1).pairs();

  // The same from all messages that there are.
  schedule::Schedule all;
  all.pipeline = training.plan().pipeline;
  all.microbatches = 24;
  std::set<std::pair<int, int>> seen;
  const schedule::MessageList messages(all);
  for (const schedule::Message& message : messages.all()) seen.emplace(message.from, message.to);
  EXPECT_EQ(pairs, Pairs(seen.begin(), seen.end()));
  return pairs;
}

TEST(Wiring, NeighboursExchangeBothWays) {
  EXPECT_EQ(pairs_of(spread(job::Mode::OneFOneB, "0:0.0:1.0:2")), (Pairs{{0, 1}, {1, 0}, {1, 2}, {2, 1}}));
  EXPECT_EQ(pairs_of(spread(job::Mode::Dp, "0:0-2")), Pairs());
}

TEST(Wiring, ReplicasExchangeWithThoseTheyShareRowsWith) {
  EXPECT_EQ(pairs_of(spread(job::Mode::OneFOneB, "0:0-1.0:2-3")), (Pairs{{0, 2}, {1, 3}, {2, 0}, {3, 1}}));
  EXPECT_EQ(pairs_of(spread(job::Mode::OneFOneB, "0:0-1.0:2-4")).size(), 8u);
}

TEST(Wiring, ReplicasInTurnExchangeWithThoseOfTheirTurns) {
  constexpr auto kInTurn = job::Replicas::RoundRobin;
  EXPECT_EQ(pairs_of(spread(job::Mode::PipeDream, "0:0-1.0:2-3", kInTurn)), (Pairs{{0, 2}, {1, 3}, {2, 0}, {3, 1}}));
  EXPECT_EQ(pairs_of(spread(job::Mode::PipeDream, "0:0-1.0:2-4", kInTurn)).size(), 12u);
}

TEST(Wiring, NoGradientGoesToWhatStandsStill) {
  job::Job job = spread(job::Mode::OneFOneB, "0:0.0:1.0:2");
  job.model.frozen = 3;
  job.parallel.cuts = {"features.3", "classifier.1"};
  const Pairs pairs = pairs_of(job);
  EXPECT_NE(std::find(pairs.begin(), pairs.end(), std::pair(0, 1)), pairs.end());
  EXPECT_EQ(std::find(pairs.begin(), pairs.end(), std::pair(1, 0)), pairs.end());
}

}  // namespace
}  // namespace millrace::runtime
