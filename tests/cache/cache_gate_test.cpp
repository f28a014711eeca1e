#include "millrace/cache/cache_gate.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <utility>
#include <vector>

namespace millrace::cache {
namespace {

TEST(CacheGate, FetchingThatIsFasterPays) {
  const CacheVerdict verdict = judge_cache({0.0002, 0.004, 0, 1000}, false);
  EXPECT_TRUE(verdict.use);
  EXPECT_EQ(verdict.why, "cached: fetching a sample takes 0.200 ms, computing it 4.000 ms");
}

TEST(CacheGate, FetchingThatIsSlowerDoesNot) {
  const CacheVerdict verdict = judge_cache({0.004, 0.0002, 0, 1000}, false);
  EXPECT_FALSE(verdict.use);
  EXPECT_EQ(verdict.why, "not cached: fetching a sample takes 4.000 ms, computing it 0.200 ms");
}

TEST(CacheGate, StaysAsItIsWhereBothTakeAboutTheSame) {
  EXPECT_FALSE(judge_cache({0.00095, 0.001, 0, 1000}, false).use);
  EXPECT_TRUE(judge_cache({0.00095, 0.001, 0, 1000}, true).use);
  EXPECT_TRUE(judge_cache({0.00089, 0.001, 0, 1000}, false).use);
  EXPECT_FALSE(judge_cache({0.00101, 0.001, 0, 1000}, true).use);
}

TEST(CacheGate, TriesWhatIsNotKnown) {
  EXPECT_TRUE(judge_cache({0, 0.001, 0, 1000}, false).use);
  EXPECT_FALSE(judge_cache({0.001, 0, 0, 1000}, false).use);  // nothing to compare with
}

TEST(CacheGate, WhatHasCostTooMuchIsClosed) {
  EXPECT_TRUE(judge_cache({0.0001, 0.001, 14, 1000}, true).use);
  const CacheVerdict verdict = judge_cache({0.0001, 0.001, 18.2, 1000}, true);
  EXPECT_FALSE(verdict.use);
  EXPECT_EQ(verdict.why, "not cached: caching has cost 18.2 s more than it saved, 1.8% of the run");
  EXPECT_FALSE(judge_cache({0.0001, 0.001, 14, 1000}, false).use);
  EXPECT_TRUE(judge_cache({0.0001, 0.001, 7, 1000}, false).use);
  EXPECT_TRUE(judge_cache({0.0001, 0.001, -1000, 1000}, true).use);
}

CacheGate gate_of_a_run(double run_s, double lost_s = 0) {
  CacheGate gate;
  gate.begin(run_s, lost_s, 0);
  return gate;
}

// A run of epochs, batch by batch: seconds with the cache, over seconds without.
struct PlayedRun {
  int64_t epochs = 20, batches = 500, samples = 32;
  double forward_s = 1e-3;  // of the prefix, per sample
  double rest_s = 2e-3;
  int64_t cold = 4;                                       // batches that take ten times as long
  std::function<double(int64_t batch)> fetch_s, store_s;  // per sample; batches counted over epochs
};

struct Played {
  double ratio = 0;
  int64_t fetched = 0, tried = 0;
};

Played play(const PlayedRun& run) {
  const double samples = static_cast<double>(run.samples);
  const int64_t batches = run.epochs * run.batches;
  const double step_s = samples * (run.forward_s + run.rest_s);
  const double without_s = static_cast<double>(batches + 9 * run.cold) * step_s;
  CacheGate gate;
  gate.begin(0, 0, batches);
  std::vector<bool> is_stored(static_cast<size_t>(run.batches));
  Played played;
  double with_s = 0;
  double before_s = 0;
  for (int64_t batch = 0; batch < batches; ++batch) {
    if (batch > 0) gate.stepped(with_s - std::exchange(before_s, with_s));
    const bool use = gate.decide();
    const auto place = static_cast<size_t>(batch % run.batches);
    with_s += samples * run.rest_s + (batch < run.cold ? 9 * step_s : 0);
    if (use && is_stored[place]) {
      const double seconds = samples * run.fetch_s(batch);
      gate.fetched(seconds, run.samples);
      with_s += seconds;
      ++played.fetched;
      continue;
    }
    with_s += samples * run.forward_s;
    gate.computed(samples * run.forward_s, run.samples);
    if (!use) continue;
    is_stored[place] = true;
    const double seconds = samples * run.store_s(batch);
    gate.stored(seconds);
    with_s += seconds;
    ++played.tried;
  }
  played.ratio = with_s / without_s;
  return played;
}

// As long as no batch takes half a percent of the run by itself.
TEST(CacheGate, ARunIsNeverTwoPercentSlower) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> noise(0.2, 1.4);
  for (const double fetch : {1e-5, 5e-4, 9e-4, 1e-3, 1.1e-3, 2e-3, 1e-2, 0.1}) {
    for (const double store : {1e-5, 2e-4, 2e-3, 2e-2, 0.1}) {
      PlayedRun run;
      run.fetch_s = [=](int64_t) { return fetch; };
      run.store_s = [=](int64_t) { return store; };
      EXPECT_LT(play(run).ratio, 1.02) << fetch << " " << store;
      run.fetch_s = [&, fetch](int64_t) { return fetch * noise(random); };
      run.store_s = [&, store](int64_t) { return store * noise(random); };
      EXPECT_LT(play(run).ratio, 1.02) << "with noise: " << fetch << " " << store;
      run.fetch_s = [=](int64_t batch) { return batch < 1000 ? 1e-5 : fetch; };
      run.store_s = [](int64_t) { return 1e-5; };
      EXPECT_LT(play(run).ratio, 1.02) << "a disk that becomes slow: " << fetch;
    }
  }
}

TEST(CacheGate, ARunWhereItPaysIsFaster) {
  PlayedRun run;
  run.fetch_s = [](int64_t) { return 1e-4; };
  run.store_s = [](int64_t) { return 2e-4; };
  const Played played = play(run);
  EXPECT_EQ(played.fetched, 19 * 500 - 1);  // the first batch of all is computed to have its time
  EXPECT_LT(played.ratio, 0.72);
}

TEST(CacheGate, SlownessThatPassesIsForgotten) {
  PlayedRun run;
  run.store_s = [](int64_t) { return 1e-5; };
  run.fetch_s = [](int64_t batch) { return batch > 1000 && batch < 1200 ? 5e-3 : 1e-4; };
  const Played played = play(run);
  EXPECT_GT(played.fetched, 8000);
  EXPECT_LT(played.ratio, 0.8);
}

TEST(CacheGate, ADeeperPrefixIsMeasuredAgain) {
  CacheGate gate = gate_of_a_run(1000);
  gate.computed(0.1, 100);
  gate.fetched(0.5, 100);
  EXPECT_FALSE(gate.decide());
  gate.deepened();
  EXPECT_FALSE(gate.decide());
  gate.computed(1, 100);
  EXPECT_TRUE(gate.decide());
  gate.fetched(0.5, 100);
  EXPECT_TRUE(gate.decide());
}

TEST(CacheGate, StoresUntilItIsKnownThatItDoesNotPay) {
  CacheGate gate = gate_of_a_run(1000);
  gate.decide();
  EXPECT_TRUE(gate.stores()) << "nothing is measured";
  gate.computed(0.1, 100);
  gate.decide();
  EXPECT_TRUE(gate.stores());
  gate.stored(14.9);
  gate.decide();
  EXPECT_TRUE(gate.stores());
  gate.stored(0.2);
  gate.decide();
  EXPECT_FALSE(gate.stores());
}

TEST(CacheGate, ARunIsNotThoughtLongerThanItIs) {
  CacheGate gate;
  gate.begin(10, 0, 100);
  gate.decide();
  gate.stored(2);
  gate.stepped(5 + 2);  // the first is slow, and stores
  gate.stored(0.1);
  gate.stepped(1 + 0.1);
  gate.stepped(1);
  gate.computed(0.1, 100);
  gate.decide();
  EXPECT_EQ(gate.verdict(), "not cached: caching has cost 2.1 s more than it saved, 1.9% of the run");  // of 10 + 100 s
}

// Each by itself would be within what a run may lose.
TEST(CacheGate, TheAccountOfARunGoesOnFromTrainingToTraining) {
  double lost_s = 0;
  int stored = 0;
  for (int training = 0; training < 10; ++training) {
    CacheGate gate = gate_of_a_run(1000, lost_s);
    for (int batch = 0; batch < 10; ++batch) {
      gate.decide();
      if (gate.stores()) {
        gate.stored(0.5);
        ++stored;
      }
      gate.computed(0.1, 100);
    }
    lost_s = gate.lost_s();
  }
  EXPECT_GE(stored, 15);
  EXPECT_LE(lost_s, 0.015 * 1000);
}

}  // namespace
}  // namespace millrace::cache
