// The search for the fastest plan: brute force, known answers, limits.
#include "millrace/plan/search.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <stdexcept>

#include "millrace/base/random.h"

namespace millrace::plan {
namespace {

using job::Mode;
using profile::Profile;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int64_t kMiB = 1 << 20;

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed, 2, 0) {}
  int below(int bound) { return static_cast<int>(random_.at(at_++)[0] % bound); }

 private:
  RandomStream random_;
  uint64_t at_ = 0;
};

Profile random_profile(Dice& dice, int n, bool branches) {
  Profile profile;
  for (int i = 0; i < n; ++i) {
    profile::Operator op;
    op.name = "op" + std::to_string(i);
    op.forward.median = dice.below(1000) * 1e-5;
    op.input_grad.median = dice.below(1000) * 1e-5;
    op.weight_grad.median = dice.below(1000) * 1e-5;
    op.update.median = dice.below(100) * 1e-5;
    op.output_bytes = dice.below(1000) * 1000;
    op.kept_bytes = dice.below(2) * op.output_bytes;
    op.param_bytes = dice.below(3) == 0 ? dice.below(1000) * 4000 : 0;
    op.workspace_bytes[0] = dice.below(1000) * 100;
    profile.operators.push_back(op);
    if (!branches && i > 0) profile.edges.push_back({i - 1, i});
    for (int from = 0; branches && from < i; ++from) {
      if (dice.below(i) < 2) profile.edges.push_back({from, i});
    }
  }
  return profile;
}

Cluster uniform(int devices, double bytes_per_s, int64_t memory_bytes) {
  Cluster cluster;
  for (int d = 0; d < devices; ++d) cluster.devices.push_back({{0, d}, "test", memory_bytes, 1.0});
  cluster.levels.push_back({"node", devices, bytes_per_s, 0, false});
  return cluster;
}

Cluster random_cluster(Dice& dice, int64_t memory_bytes) {
  const double bandwidth = 1e7 * (1 + dice.below(100));
  if (dice.below(2) == 0) return uniform(1 + dice.below(5), bandwidth, memory_bytes);
  Cluster cluster = uniform(4, bandwidth, memory_bytes);
  cluster.levels = {{"node", 2, bandwidth * 8, 1e-6, dice.below(2) == 0}, {"network", 2, bandwidth, 1e-5, false}};
  if (dice.below(2) == 0) {
    for (int d : {dice.below(4), dice.below(4)}) cluster.devices[d].speed = 0.5;
  }
  return cluster;
}

// Every cut and every choice of devices, one after another from the first stage on.
class BruteForce {
 public:
  BruteForce(const Profile& profile, const Cluster& cluster, const CostOptions& options)
      : cluster_(cluster), ties_(profile.ties), costs_(profile, cluster, options), n_(costs_.num_operators()) {
    std::map<double, std::vector<int>> kinds;
    for (size_t d = 0; d < cluster.devices.size(); ++d) kinds[cluster.devices[d].speed].push_back(static_cast<int>(d));
    for (auto& [speed, devices] : kinds) kinds_.push_back(devices);
    least_.assign(cluster.devices.size() + 1, std::numeric_limits<double>::infinity());
    consider({{0, n_, all_devices()}});  // one stage may mix kinds
    std::vector<Part> parts;
    std::vector<int> used(kinds_.size(), 0);
    extend_backwards(parts, n_, used);
  }

  // By number of stages; infinity where nothing fits.
  const std::vector<double>& least() const { return least_; }
  double best() const { return *std::min_element(least_.begin(), least_.end()); }
  size_t plans() const { return plans_; }

 private:
  struct Part {
    int begin, end;
    std::vector<int> devices;
  };

  std::vector<int> all_devices() const {
    std::vector<int> devices(cluster_.devices.size());
    std::iota(devices.begin(), devices.end(), 0);
    return devices;
  }

  // parts: the last stage first. used: devices per kind, from the end of its list.
  void extend_backwards(std::vector<Part>& parts, int end, std::vector<int>& used) {
    if (end == 0) return consider({parts.rbegin(), parts.rend()});
    for (int begin = 0; begin < end; ++begin) {
      if (std::any_of(ties_.begin(), ties_.end(), [&](const auto& t) { return t.from < begin && begin <= t.to; }))
        continue;
      for (size_t kind = 0; kind < kinds_.size(); ++kind) {
        const int left = static_cast<int>(kinds_[kind].size()) - used[kind];
        for (int replicas = 1; replicas <= left; ++replicas) {
          const auto last = kinds_[kind].begin() + left;
          parts.push_back({begin, end, {last - replicas, last}});
          used[kind] += replicas;
          extend_backwards(parts, begin, used);
          used[kind] -= replicas;
          parts.pop_back();
        }
      }
    }
  }

  void consider(const std::vector<Part>& parts) {
    ++plans_;
    std::vector<int> taken;  // by later stages
    double busy = 0, fill = 0;
    for (size_t s = parts.size(); s-- > 0;) {
      std::vector<int> now = taken, before, after;
      now.insert(now.end(), parts[s].devices.begin(), parts[s].devices.end());
      for (const auto& kind : kinds_) {
        const auto is_in = [](const std::vector<int>& set, int d) {
          return std::find(set.begin(), set.end(), d) != set.end();
        };
        for (int d : kind) {
          if (is_in(taken, d)) {
            after.push_back(d);
            break;
          }
        }
        for (auto d = kind.rbegin(); d != kind.rend(); ++d) {
          if (!is_in(now, *d)) {
            before.push_back(*d);
            break;
          }
        }
      }
      taken = now;
      const Place place = costs_.place(parts[s].devices, before, after);
      const StageCost cost = costs_.evaluate(parts[s].begin, parts[s].end, place,
                                             {static_cast<int>(parts.size() - s), static_cast<int>(taken.size())});
      for (int d : parts[s].devices) {
        if (cost.memory.total() > static_cast<double>(cluster_.devices[d].memory_bytes)) return;
      }
      busy = std::max(busy, cost.busy_s);
      fill += cost.fill_s;
    }
    least_[parts.size()] = std::min(least_[parts.size()], busy + fill);
  }

  const Cluster& cluster_;
  const std::vector<profile::Edge> ties_;
  StageCosts costs_;
  int n_;
  std::vector<std::vector<int>> kinds_;
  std::vector<double> least_;
  size_t plans_ = 0;
};

struct Tally {
  size_t plans = 0, tight = 0, impossible = 0, pipelines = 0;
};

void compare(uint64_t seed, const Profile& profile, const Cluster& cluster, Dice& dice, Tally& tally) {
  constexpr Mode kModes[] = {Mode::GPipe, Mode::OneFOneB, Mode::PipeDream, Mode::Ssp};
  const CostOptions options{.mode = kModes[dice.below(4)], .microbatches = 1 + dice.below(8)};
  const BruteForce expected(profile, cluster, options);
  const SearchResult result = search(profile, cluster, options);
  tally.plans += expected.plans();
  const auto near = [](double value) { return testing::DoubleNear(value, 1e-12 + 1e-9 * value); };
  if (expected.best() == std::numeric_limits<double>::infinity()) {
    ++tally.impossible;
    EXPECT_FALSE(result.best) << seed;
    EXPECT_THAT(result.refusal, StartsWith("no plan fits")) << seed;
    return;
  }
  ASSERT_TRUE(result.best) << seed;
  EXPECT_THAT(result.best->step_s, near(expected.best())) << seed;
  EXPECT_TRUE(result.best->fits) << seed;
  tally.tight += !result.data_parallel.fits || (result.straight_pipeline && !result.straight_pipeline->fits);
  tally.pipelines += result.best->stages.size() > 1;
  double other = std::numeric_limits<double>::infinity();
  for (size_t stages = 1; stages < expected.least().size(); ++stages) {
    if (stages != result.best->stages.size()) other = std::min(other, expected.least()[stages]);
  }
  ASSERT_EQ(result.runner_up.has_value(), other < std::numeric_limits<double>::infinity()) << seed;
  if (result.runner_up) {
    EXPECT_THAT(result.runner_up->step_s, near(other)) << seed;
  }
  if (result.data_parallel.fits) {
    EXPECT_LE(result.best->step_s, result.data_parallel.step_s) << seed;
  }
  if (result.straight_pipeline && result.straight_pipeline->fits) {
    EXPECT_LE(result.best->step_s, result.straight_pipeline->step_s * (1 + 1e-12)) << seed;
  }
}

void compare(uint64_t seed, bool branches, Tally& tally) {
  Dice dice(RandomStream::mix(seed, branches));
  Profile profile = random_profile(dice, 1 + dice.below(9), branches);
  const int n = static_cast<int>(profile.operators.size());
  if (seed % 8 == 0 && n > 2) profile.ties.push_back({static_cast<int>(seed / 8) % (n - 2), n - 2});
  const bool limited = dice.below(3) > 0;
  // Around what the whole model needs on one device: the limit decides.
  int64_t needed = kMiB;
  for (const profile::Operator& op : profile.operators) needed += 3 * op.param_bytes + op.kept_bytes + op.output_bytes;
  const Cluster cluster = random_cluster(dice, limited ? needed * (2 + dice.below(12)) / 10 : int64_t{1} << 40);
  compare(seed, profile, cluster, dice, tally);
}

TEST(Search, EqualsBruteForceOnChains) {
  Tally tally;
  for (uint64_t seed = 0; seed < 1000; ++seed) compare(seed, false, tally);
  EXPECT_GT(tally.plans, 100000u);
  EXPECT_GT(tally.tight, 100u);
  EXPECT_GT(tally.impossible, 20u);
  EXPECT_GT(tally.pipelines, 200u);
}

TEST(Search, EqualsBruteForceOnGraphs) {
  Tally tally;
  for (uint64_t seed = 0; seed < 200; ++seed) compare(seed, true, tally);
  EXPECT_GT(tally.tight, 20u);
  EXPECT_GT(tally.pipelines, 40u);
}

// Long enough that a search among few cuts goes before.
TEST(Search, EqualsBruteForceOnLongModels) {
  Tally tally;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Dice dice(RandomStream::mix(seed, 3));
    const Profile profile = random_profile(dice, 33 + dice.below(80), dice.below(2) == 0);
    const int64_t memory = dice.below(2) == 0 ? (20 + dice.below(80)) * kMiB : int64_t{1} << 40;
    Cluster cluster = uniform(2 + dice.below(2), 1e7 * (1 + dice.below(100)), memory);
    if (dice.below(3) == 0) cluster.devices[0].speed = 2;
    compare(seed, profile, cluster, dice, tally);
  }
  EXPECT_GT(tally.plans, 50000u);
  EXPECT_GT(tally.tight, 5u);
  EXPECT_GT(tally.pipelines, 20u);
}

// n operators of 3 ms that hand on little and have no parameters.
Profile even_chain(int n) {
  Profile profile;
  for (int i = 0; i < n; ++i) {
    profile::Operator op;
    op.name = "op" + std::to_string(i);
    op.forward.median = op.input_grad.median = op.weight_grad.median = 1e-3;
    op.output_bytes = op.kept_bytes = 1000;
    profile.operators.push_back(op);
    if (i > 0) profile.edges.push_back({i - 1, i});
  }
  return profile;
}

TEST(Search, PutsManyParametersOnFewDevices) {
  // Convolutions with much work and few parameters, then one layer with many parameters and little work.
  Profile profile = even_chain(4);
  for (int i = 0; i < 3; ++i) profile.operators[i].forward.median = 9e-3;
  profile.operators[3].param_bytes = 200 * kMiB;
  const SearchResult result = search(profile, uniform(4, 1e9, 64 * 1024 * kMiB), {.mode = Mode::Ssp});
  ASSERT_EQ(result.best->stages.size(), 2u);
  EXPECT_EQ(result.best->stages[0].last, 2);
  EXPECT_EQ(result.best->stages[0].devices, (std::vector<int>{0, 1, 2}));
  EXPECT_NEAR(result.best->step_s, 11e-3, 1e-4);
  // 200 MiB twice over 4 links' worth of a ring, less a quarter of the backward pass.
  EXPECT_NEAR(result.data_parallel.step_s, 36e-3 / 4 + 1.5 * 200 * kMiB / 1e9 - 8e-3 / 4, 1e-9);
}

TEST(Search, SynchronousStepIsTheClassicFormula) {
  // Two stages of 12 ms on one device each, m micro-batches: (m - 1) t + 2 t, and free messages.
  const CostOptions options{.mode = Mode::OneFOneB, .microbatches = 8};
  const SearchResult result = search(even_chain(8), uniform(2, 1e15, 1 << 30), options);
  EXPECT_NEAR(result.straight_pipeline->step_s, (8 + 1) * 12e-3, 1e-9);
  EXPECT_NEAR(result.data_parallel.step_s, 8 * 12e-3, 1e-9);
  EXPECT_EQ(result.best->stages.size(), 1u);
}

TEST(Search, MemoryGrowsWithDepth) {
  const CostOptions options{.mode = Mode::Ssp};
  Profile profile = even_chain(4);
  for (auto& op : profile.operators) op.param_bytes = kMiB;
  const SearchResult result = search(profile, uniform(4, 1e9, 64 * kMiB), options);
  const auto& stages = result.straight_pipeline->stages;
  ASSERT_EQ(stages.size(), 4u);
  for (int s = 0; s < 4; ++s) {
    EXPECT_EQ(stages[s].cost.memory.versions, 4 - s);
    EXPECT_EQ(stages[s].cost.memory.weights, (4 - s) * kMiB);
    EXPECT_EQ(stages[s].cost.memory.activations, (4 - s) * (s == 0 ? 1000 : 2000));
  }
}

TEST(Search, DevicesOfTwoSpeedsComeNearTheBound) {
  Cluster cluster = uniform(8, 1e10, 1 << 30);
  double speeds = 0;
  for (int d = 0; d < 8; ++d) speeds += cluster.devices[d].speed = d % 2 == 0 ? 1.0 : 0.4;
  const Profile profile = even_chain(100);
  for (Mode mode : {Mode::PipeDream, Mode::Ssp}) {
    const SearchResult result = search(profile, cluster, {.mode = mode});
    EXPECT_GE(100 * 3e-3 / speeds / result.best->step_s, 0.9);
  }
}

TEST(Search, KeepsTrafficWithinANode) {
  // Parameters are dear to sum over the network: replicas within a node, the cut between nodes.
  Profile profile = even_chain(8);
  for (auto& op : profile.operators) op.param_bytes = kMiB;
  Cluster cluster = uniform(4, 1e11, 1 << 30);
  cluster.levels = {{"node", 2, 1e12, 0, false}, {"network", 2, 1e8, 0, false}};
  const SearchResult result = search(profile, cluster, {.mode = Mode::Ssp});
  ASSERT_EQ(result.best->stages.size(), 2u);
  EXPECT_EQ(result.best->stages[0].devices, (std::vector<int>{0, 1}));
  EXPECT_EQ(result.best->stages[1].devices, (std::vector<int>{2, 3}));
}

TEST(Search, CountsSkipConnectionsAtEveryCut) {
  Profile profile = even_chain(4);
  profile.edges.push_back({0, 3});
  profile.operators[0].output_bytes = 1000000;
  const SearchResult result = search(profile, uniform(4, 1e9, 1 << 30), {.mode = Mode::Ssp});
  EXPECT_NEAR(result.straight_pipeline->stages[2].cost.transfer_s, 2 * (1000000 + 1000) / 1e9, 1e-12);
}

TEST(Search, SaysWhyNothingFits) {
  Profile profile = even_chain(4);
  profile.operators[2].param_bytes = 100 * kMiB;
  const SearchResult result = search(profile, uniform(4, 1e9, 256 * kMiB), {.mode = Mode::Ssp});
  EXPECT_FALSE(result.best);
  EXPECT_FALSE(result.data_parallel.fits);
  EXPECT_FALSE(result.straight_pipeline->fits);
  EXPECT_THAT(result.refusal,
              AllOf(StartsWith("no plan fits: in the one that needs least, stage "),
                    HasSubstr("needs 300.0 MiB on device 0:"), HasSubstr("which has 256.0 MiB: "),
                    HasSubstr("weights 100.0 MiB (1 version) + gradients 100.0 MiB + optimizer 100.0")));
  EXPECT_TRUE(search(profile, uniform(4, 1e9, 301 * kMiB), {.mode = Mode::Ssp}).best);
}

TEST(Search, RefusesWhatCannotBePlanned) {
  const auto refusal = [](const Profile& profile, const Cluster& cluster) -> std::string {
    try {
      search(profile, cluster, {});
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refusal({}, uniform(2, 1e9, 1)), HasSubstr("no operators"));
  EXPECT_THAT(refusal(even_chain(2), {}), HasSubstr("no devices"));
  EXPECT_THAT(refusal(even_chain(2), uniform(2, 0, 1)), HasSubstr("disconnected"));
  Cluster uneven = uniform(3, 1e9, 1);
  uneven.levels[0].group = 2;
  EXPECT_THAT(refusal(even_chain(2), uneven), HasSubstr("3 devices, its levels have 2"));
}

bool same(const SearchPlan& a, const SearchPlan& b) {
  return a.step_s == b.step_s && std::equal(a.stages.begin(), a.stages.end(), b.stages.begin(), b.stages.end(),
                                            [](const SearchStage& x, const SearchStage& y) {
                                              return x.first == y.first && x.last == y.last && x.devices == y.devices;
                                            });
}

TEST(Search, SameAnswerEveryTime) {
  Dice dice(7);
  const Profile profile = random_profile(dice, 30, true);
  Cluster cluster = uniform(8, 1e9, 64 * kMiB);
  const SearchResult first = search(profile, cluster, {.microbatches = 8});
  ASSERT_TRUE(first.best && first.runner_up);
  for (int run = 1; run < 100; ++run) {
    const SearchResult again = search(profile, cluster, {.microbatches = 8});
    ASSERT_TRUE(same(*again.best, *first.best) && same(*again.runner_up, *first.runner_up));
    ASSERT_EQ(again.examined, first.examined);
  }
}

// Counts, never seconds. They leave out the continuations that synchronous modes keep per state.
TEST(Search, LargeModelsAreBounded) {
  Dice dice(11);
  const Profile resnet101 = random_profile(dice, 350, false), nasnet = random_profile(dice, 1250, true);
  for (Mode mode : {Mode::OneFOneB, Mode::PipeDream, Mode::Ssp}) {
    const CostOptions options{.mode = mode, .microbatches = 16};
    const size_t sixteen = search(resnet101, uniform(16, 1e10, 256 * kMiB), options).examined;
    const size_t sixty_four = search(resnet101, uniform(64, 1e10, 256 * kMiB), options).examined;
    const size_t large = search(nasnet, uniform(16, 1e10, 4096 * kMiB), options).examined;
    RecordProperty(std::to_string(static_cast<int>(mode)), std::to_string(sixteen));
    EXPECT_LT(sixteen, 5000000u);
    EXPECT_LT(sixty_four, 50000000u);
    EXPECT_LT(large, 100000000u);
  }
}

}  // namespace
}  // namespace millrace::plan
