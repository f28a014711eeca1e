#include "millrace/schedule/simulator.h"

#include <gtest/gtest.h>

#include "millrace/schedule/csv.h"
#include "millrace/schedule/generators.h"
#include "millrace/schedule/prover.h"

namespace millrace::schedule {
namespace {

using job::Mode;

Schedule of_mode(Mode mode, int num_stages, int microbatches) {
  return compute_schedule(chain(mode, num_stages, microbatches), 1);
}

Timeline in_units(const Schedule& schedule) { return simulate(schedule, unit_costs(schedule.pipeline, 1, 1, 1)); }

struct Golden {
  const char* name;
  Schedule schedule;
  double makespan, peak;
};

std::vector<Golden> golden() {
  return {{"GPipe", of_mode(Mode::GPipe, 4, 8), 33, 8},
          {"1F1B", of_mode(Mode::OneFOneB, 4, 8), 33, 4},
          {"interleaved", interleaved_schedule(4, 2, 8), 28.5, 5.5},
          {"ZB-H1", zb_h1_schedule(4, 8), 27, 4},
          {"ZB-V", zb_v_schedule(4, 8), 25.5, 4}};
}

TEST(Simulator, ReproducesTheKnownTimesAndPeaks) {
  for (const Golden& known : golden()) {
    const Timeline timeline = in_units(known.schedule);
    EXPECT_DOUBLE_EQ(timeline.makespan_s, known.makespan) << known.name;
    EXPECT_DOUBLE_EQ(timeline.peak_activations[0], known.peak) << known.name;
  }
}

TEST(Simulator, MessagesThatCostNothingChangeNothing) {
  for (const Golden& known : golden()) {
    const Timeline timeline = in_units(lower(known.schedule));
    EXPECT_DOUBLE_EQ(timeline.makespan_s, known.makespan) << known.name;
    EXPECT_DOUBLE_EQ(timeline.peak_activations[0], known.peak) << known.name;
  }
}

TEST(Simulator, BubbleOfGPipeAnd1F1BFollowsTheFormula) {
  for (const Mode mode : {Mode::GPipe, Mode::OneFOneB}) {
    for (int p = 1; p <= 8; ++p) {
      for (int m = p; m <= 20; m += 3) {
        const Schedule schedule = of_mode(mode, p, m);
        EXPECT_NEAR(bubble(schedule, in_units(schedule)), (p - 1.0) / (m + p - 1), 1e-12) << p << " stages, " << m;
      }
    }
  }
}

TEST(Simulator, GeneratedSchedulesFollowTheirFormulas) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 2 * p; m <= 4 * p; m += p) {
      EXPECT_DOUBLE_EQ(in_units(zb_h1_schedule(p, m)).makespan_s, 3 * m + p - 1) << p << " workers, " << m;
      EXPECT_DOUBLE_EQ(in_units(zb_v_schedule(p, m)).makespan_s, 3 * m + 0.5 * (p - 1)) << p << " workers, " << m;
      for (const double peak : in_units(zb_h1_schedule(p, m)).peak_activations) EXPECT_LE(peak, p);
      for (const double peak : in_units(zb_v_schedule(p, m)).peak_activations) EXPECT_LE(peak, p);
      for (int v = 1; v <= 4; ++v) {
        const double makespan = in_units(interleaved_schedule(p, v, m)).makespan_s;
        EXPECT_NEAR(makespan, 3 * m + 3.0 * (p - 1) / v, 1e-9) << p << " workers, " << v << " stages, " << m;
      }
    }
  }
}

TEST(Simulator, FewMicrobatchesStillFinish) {
  for (int p = 1; p <= 6; ++p) {
    for (int m = 1; m <= 2 * p; ++m) {
      EXPECT_GE(in_units(zb_h1_schedule(p, m)).makespan_s, 3 * m) << p << " " << m;
      EXPECT_GE(in_units(zb_v_schedule(p, m)).makespan_s, 3 * m) << p << " " << m;
    }
  }
}

TEST(Simulator, InterleavedRefusesUnevenGroups) {
  EXPECT_THROW(interleaved_schedule(4, 2, 6), std::invalid_argument);
  EXPECT_THROW(zb_h1_schedule(0, 6), std::invalid_argument);
}

Costs with_links(const Pipeline& pipeline, Link link, double activation_bytes) {
  Costs costs = unit_costs(pipeline, 1, 1, 1);
  costs.message_bytes.assign(pipeline.edges.size(), {activation_bytes, 0.0});
  costs.links.assign(pipeline.num_workers, std::vector<Link>(pipeline.num_workers, link));
  return costs;
}

TEST(Simulator, AMessageTakesLatencyAndBytesOverBandwidth) {
  const Schedule schedule = lower(of_mode(Mode::OneFOneB, 2, 1));
  // F, there, F, I + W, back (latency alone), I + W.
  EXPECT_DOUBLE_EQ(simulate(schedule, with_links(schedule.pipeline, {0.5, 4}, 10)).makespan_s,
                   1 + (0.5 + 10.0 / 4) + 1 + 2 + 0.5 + 2);
}

TEST(Simulator, ALinkCarriesOneMessageAtATime) {
  Schedule schedule = lower(evaluation_schedule(chain(Mode::GPipe, 2, 1), 6));
  schedule.slots = {6, 6};
  const double makespan = simulate(schedule, with_links(schedule.pipeline, {0, 1}, 5)).makespan_s;
  EXPECT_DOUBLE_EQ(makespan, 1 + 6 * 5 + 1);
}

TEST(Simulator, MessagesToOneWorkerTakeTheirTurns) {
  Pipeline pipeline = chain(Mode::GPipe, 2, 1);
  pipeline.num_workers = 4;
  pipeline.stages = {{0, 1, 2}, {3}};
  pipeline.rows = 3;
  const Schedule schedule = lower(evaluation_schedule(pipeline, 1));
  // Three shares of 5 s each, all sent at once, come through the one port of their receiver.
  EXPECT_DOUBLE_EQ(simulate(schedule, with_links(pipeline, {0, 1}, 15)).makespan_s, 1 + 3 * 5 + 1);
}

TEST(Simulator, SlotsHoldTheSenderBack) {
  Schedule schedule = lower(evaluation_schedule(chain(Mode::GPipe, 2, 1), 6));
  const Timeline timeline = simulate(schedule, with_links(schedule.pipeline, {0, 1}, 5));
  size_t forward = 0;
  for (size_t i = 0; i < schedule.workers[0].size(); ++i) {
    if (schedule.workers[0][i].kind == Kind::Forward && schedule.workers[0][i].microbatch == 2) forward = i;
  }
  EXPECT_DOUBLE_EQ(timeline.actions[0][forward].begin_s, 6) << "two slots: the first message must have left";
}

TEST(Simulator, ASumStartsWhenAllReplicasHaveReachedIt) {
  Pipeline pipeline = chain(Mode::Dp, 1, 1);
  pipeline.num_workers = 2;
  pipeline.stages = {{0, 1}};
  pipeline.buckets = {2};
  pipeline.rows = 2;
  const Schedule schedule = lower(compute_schedule(pipeline, 1));
  Costs costs = unit_costs(pipeline, 1, 1, 1);
  costs.reduce_s = {{10, 20}};
  for (ReplicaCosts& replica : costs.replicas[0]) replica.step_s = 4;
  // Buckets are ready at 2 and 3; the second waits for the first to pass, and so does the first's step for nobody.
  const Timeline timeline = simulate(schedule, costs);
  EXPECT_DOUBLE_EQ(timeline.makespan_s, 2 + 10 + 20 + 2);
}

// What the last stage found good may still overflow on the first: it waits for it.
TEST(Simulator, StagesThatAgreeStepTogether) {
  for (const Mode mode : {Mode::OneFOneB, Mode::Ssp}) {
    Pipeline pipeline = chain(mode, 2, mode == Mode::Ssp ? 1 : 2);
    const auto step_of_last_stage = [&](bool agrees) {
      pipeline.agrees_on_steps = agrees;
      const Schedule schedule = lower(compute_schedule(pipeline, 1));
      prove(schedule);
      const Timeline timeline = simulate(schedule, unit_costs(pipeline, 1, 1, 1));
      for (size_t i = 0; i < schedule.workers[1].size(); ++i) {
        if (schedule.workers[1][i].kind == Kind::Step) return timeline.actions[1][i].begin_s;
      }
      return -1.0;
    };
    EXPECT_EQ(step_of_last_stage(true), step_of_last_stage(false) + 2) << "the first stage's backward";
  }
}

TEST(Simulator, RefusesListsThatNeverEnd) {
  const Schedule schedule = read_csv("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", "crossed.csv");
  EXPECT_THROW(in_units(schedule), std::invalid_argument);
}

// Counts, not seconds: what is simulated grows with the lists alone, so this would take hours if it were quadratic.
TEST(Simulator, LargeSchedulesAreNoMatter) {
  const Schedule schedule = lower(of_mode(Mode::OneFOneB, 64, 256));
  EXPECT_DOUBLE_EQ(in_units(schedule).makespan_s, 3 * (256 + 63));
}

}  // namespace
}  // namespace millrace::schedule
