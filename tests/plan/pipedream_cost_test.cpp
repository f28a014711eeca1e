// PipeDream's model of cost: its published costs, and brute force.
#include "millrace/plan/pipedream_cost.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <stdexcept>

#include "millrace/base/random.h"

namespace millrace::plan {
namespace {

using profile::Profile;
using testing::HasSubstr;
using Levels = std::vector<PipeDreamLevel>;

Profile read(const std::string& model) {
  const std::string path = std::string(MILLRACE_SOURCE_DIR) + "/tests/profile/data/" + model + ".graph.txt";
  std::ifstream in(path, std::ios::binary);
  return profile::parse_pipedream_graph({std::istreambuf_iterator<char>(in), {}}, path);
}

std::vector<int> replicas(const PipeDreamPlan& plan) {
  std::vector<int> counts;
  for (const PipeDreamStage& stage : plan.stages) counts.push_back(stage.replicas);
  return counts;
}

constexpr double kLastDigit = 0.5e-7;

TEST(PipeDreamCost, GoldenAlexNet) {
  const Profile alexnet = read("alexnet");
  const PipeDreamPlan four = pipedream_plan(alexnet, Levels{{4, 1e9}});
  EXPECT_NEAR(four.cost_s, 0.0342171, kLastDigit);
  EXPECT_EQ(replicas(four), (std::vector<int>{3, 1}));
  EXPECT_NEAR(four.data_parallel_s / four.cost_s, 5.98, 0.005);
  EXPECT_NEAR(pipedream_plan(alexnet, Levels{{16, 1.25e9}}).cost_s, 0.0150995, kLastDigit);
}

TEST(PipeDreamCost, GoldenVgg16) {
  const Profile vgg16 = read("vgg16");
  const PipeDreamPlan four = pipedream_plan(vgg16, Levels{{4, 1e9}});
  EXPECT_NEAR(four.cost_s, 0.2055209, kLastDigit);
  EXPECT_EQ(replicas(four), (std::vector<int>{3, 1}));
  EXPECT_NEAR(four.data_parallel_s / four.cost_s, 2.84, 0.005);
  EXPECT_NEAR(pipedream_plan(vgg16, Levels{{16, 1.25e9}}).cost_s, 0.0547949, kLastDigit);
  EXPECT_NEAR(pipedream_plan(vgg16, Levels{{4, 1.1e10}, {4, 1.25e9}}).cost_s, 0.0670002, kLastDigit);
}

TEST(PipeDreamCost, StagesHoldEveryOperatorOnceAndUseEveryDevice) {
  const Profile vgg16 = read("vgg16");
  for (const Levels& levels : {Levels{{16, 1.25e9}}, Levels{{4, 1.1e10}, {4, 1.25e9}}}) {
    std::vector<int> all;
    int devices = 0;
    for (const PipeDreamStage& stage : pipedream_plan(vgg16, levels).stages) {
      all.insert(all.end(), stage.operators.begin(), stage.operators.end());
      devices += stage.replicas;
    }
    EXPECT_EQ(devices, 16);
    ASSERT_EQ(all.size(), vgg16.operators.size());
    for (size_t op = 0; op < all.size(); ++op) EXPECT_EQ(all[op], static_cast<int>(op));
  }
}

Profile random_profile(uint64_t seed, int most_operators, bool branches) {
  const RandomStream random(seed, 1, branches);
  uint64_t at = 0;
  const auto below = [&](int bound) { return static_cast<int>(random.at(at++)[0] % bound); };
  Profile profile;
  const int n = 2 + below(most_operators - 1);
  for (int i = 0; i < n; ++i) {
    profile::Operator op;
    op.name = std::to_string(i);
    op.forward.median = below(1000) * 1e-3;
    op.input_grad.median = op.weight_grad.median = below(1000) * 1e-3;
    op.output_bytes = below(1000) * 1000;
    op.param_bytes = below(3) == 0 ? below(1000) * 4000 : 0;
    profile.operators.push_back(op);
    if (!branches && i > 0) profile.edges.push_back({i - 1, i});
    for (int from = 0; branches && from < i; ++from) {
      if (below(i) < 2) profile.edges.push_back({from, i});
    }
  }
  return profile;
}

// Straight from the recursion, over sets of operators as bits, nothing remembered.
class BruteForce {
 public:
  BruteForce(const Profile& profile, const Levels& levels) : profile_(profile), levels_(levels) {}
  double cost() const { return best(levels_.size() - 1, 0, all(), levels_.back().workers); }

 private:
  using Set = uint32_t;
  Set all() const { return (Set{1} << profile_.operators.size()) - 1; }
  bool closed(Set set) const {
    return std::all_of(profile_.edges.begin(), profile_.edges.end(), [&](const profile::Edge& edge) {
      return (set >> edge.to & 1) == 0 || (set >> edge.from & 1) == 1;
    });
  }
  double crossing(Set set) const {
    double bytes = 0;
    for (size_t op = 0; op < profile_.operators.size(); ++op) {
      const bool crosses = std::any_of(profile_.edges.begin(), profile_.edges.end(), [&](const profile::Edge& edge) {
        return edge.from == static_cast<int>(op) && (set >> edge.from & 1) == 1 && (set >> edge.to & 1) == 0;
      });
      if (crosses) bytes += static_cast<double>(profile_.operators[op].output_bytes);
    }
    return bytes;
  }
  double worker_seconds(size_t level, Set begin, Set end) const {
    if (level > 0) return best(level - 1, begin, end, levels_[level - 1].workers);
    double seconds = 0;
    for (size_t i = 0; i < profile_.operators.size(); ++i) {
      const profile::Operator& op = profile_.operators[i];
      if ((end & ~begin) >> i & 1) seconds += op.forward.median + op.input_grad.median + op.weight_grad.median;
    }
    return seconds;
  }
  double params(Set begin, Set end) const {
    double bytes = 0;
    for (size_t i = 0; i < profile_.operators.size(); ++i) {
      if ((end & ~begin) >> i & 1) bytes += static_cast<double>(profile_.operators[i].param_bytes);
    }
    return bytes;
  }
  double best(size_t level, Set begin, Set end, int m) const {
    const double bandwidth = levels_[level].bytes_per_s;
    const int within = level == 0 ? 1 : levels_[level - 1].workers;
    double least =
        (worker_seconds(level, begin, end) + 4 * (m - 1) * params(begin, end) / (bandwidth * m) / within) / m;
    for (Set split = begin + 1; split < end; ++split) {
      if ((split & begin) != begin || (split & ~end) != 0 || !closed(split)) continue;
      for (int r = 1; r < m; ++r) {
        double cost = (worker_seconds(level, split, end) + 4 * (r - 1) * params(split, end) / (bandwidth * r)) / r;
        cost = std::max(cost, 2 * crossing(split) / (bandwidth * r));
        if (end != all()) cost = std::max(cost, 2 * crossing(end) / (bandwidth * r));
        if (cost < least) least = std::min(least, std::max(cost, best(level, begin, split, m - r)));
      }
    }
    return least;
  }

  const Profile& profile_;
  const Levels& levels_;
};

TEST(PipeDreamCost, EqualsBruteForceOnChains) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const Profile profile = random_profile(seed, 10, false);
    const Levels levels = seed % 4 == 0 ? Levels{{2, 4e6}, {2, 1e6}} : Levels{{1 + static_cast<int>(seed % 5), 2e6}};
    const double expected = BruteForce(profile, levels).cost();
    ASSERT_NEAR(pipedream_plan(profile, levels).cost_s, expected, 1e-12 * (1 + expected)) << seed;
  }
}

TEST(PipeDreamCost, EqualsBruteForceOnGraphs) {
  size_t most_prefixes = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Profile profile = random_profile(seed, 10, true);
    const Levels levels = seed % 4 == 0 ? Levels{{2, 4e6}, {2, 1e6}} : Levels{{1 + static_cast<int>(seed % 4), 2e6}};
    const double expected = BruteForce(profile, levels).cost();
    const PipeDreamPlan plan = pipedream_plan(profile, levels);
    ASSERT_NEAR(plan.cost_s, expected, 1e-12 * (1 + expected)) << seed;
    EXPECT_TRUE(plan.all_prefixes);
    most_prefixes = std::max(most_prefixes, plan.num_prefixes);
  }
  EXPECT_GT(most_prefixes, 12u) << "the graphs have no branches to speak of";
}

// A NASNet-sized graph: cells of parallel chains between two operators.
Profile cells(int num_cells, int branches, int length) {
  Profile profile;
  const auto add = [&](std::vector<int> reads) {
    const int id = static_cast<int>(profile.operators.size());
    profile::Operator op;
    op.name = std::to_string(id);
    op.forward.median = (1 + id % 7) * 1e-3;
    op.output_bytes = 1000000 + id % 13;
    op.param_bytes = 100000 * (id % 5);
    profile.operators.push_back(op);
    for (int from : reads) profile.edges.push_back({from, id});
    return id;
  };
  int join = add({});
  for (int cell = 0; cell < num_cells; ++cell) {
    std::vector<int> ends;
    for (int b = 0; b < branches; ++b) {
      int last = join;
      for (int i = 0; i < length; ++i) last = add({last});
      ends.push_back(last);
    }
    join = add(ends);
  }
  return profile;
}

TEST(PipeDreamCost, LargeGraphsAreBounded) {
  const Profile nasnet = cells(40, 5, 6);
  ASSERT_EQ(nasnet.operators.size(), 1241u);
  const PipeDreamPlan plan = pipedream_plan(nasnet, Levels{{16, 1e10}});
  EXPECT_FALSE(plan.all_prefixes);
  EXPECT_EQ(plan.num_prefixes, 1242u);
  EXPECT_TRUE(pipedream_plan(cells(20, 3, 3), Levels{{4, 1e10}}).all_prefixes);
}

TEST(PipeDreamCost, SameAnswerEveryTime) {
  const Profile profile = cells(3, 2, 3);
  const PipeDreamPlan first = pipedream_plan(profile, Levels{{4, 1e9}, {2, 1e8}});
  for (int run = 1; run < 100; ++run) {
    const PipeDreamPlan again = pipedream_plan(profile, Levels{{4, 1e9}, {2, 1e8}});
    ASSERT_EQ(again.cost_s, first.cost_s);
    ASSERT_EQ(again.stages.size(), first.stages.size());
    for (size_t s = 0; s < first.stages.size(); ++s) {
      ASSERT_EQ(again.stages[s].operators, first.stages[s].operators);
      ASSERT_EQ(again.stages[s].replicas, first.stages[s].replicas);
    }
  }
}

TEST(PipeDreamCost, RefusesWhatIsNoCluster) {
  const auto refusal = [](const Profile& profile, const Levels& levels) -> std::string {
    try {
      pipedream_plan(profile, levels);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refusal({}, {{4, 1e9}}), HasSubstr("no operators"));
  EXPECT_THAT(refusal(cells(1, 1, 1), {}), HasSubstr("at least one level"));
  EXPECT_THAT(refusal(cells(1, 1, 1), {{0, 1e9}}), HasSubstr("0 devices"));
  EXPECT_THAT(refusal(cells(1, 1, 1), {{4, 0}}), HasSubstr("bandwidth of 0"));
}

}  // namespace
}  // namespace millrace::plan
