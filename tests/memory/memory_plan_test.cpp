#include "millrace/memory/memory_plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "millrace/base/random.h"
#include "millrace/graph/fuse.h"
#include "millrace/model/model.h"

namespace millrace::memory {
namespace {

using graph::BufferId;
using graph::BufferRole;
using graph::InPlace;
using graph::Node;
using graph::Program;

struct Planned {
  Program program;
  std::vector<size_t> buffer_bytes, scratch_bytes;
  MemoryPlan plan;

  void make() { plan = plan_memory(program, buffer_bytes, scratch_bytes); }
  BufferId buffer(size_t bytes, BufferRole role = BufferRole::Activation) {
    program.buffers.push_back({fmt::format("b{}", program.buffers.size()), {1}, DType::F32, role});
    buffer_bytes.push_back(bytes);
    return static_cast<BufferId>(program.buffers.size()) - 1;
  }
  void node(std::vector<BufferId> reads, std::vector<BufferId> writes, std::vector<InPlace> in_place = {},
            size_t scratch = 0) {
    Node node;
    node.name = fmt::format("n{}", program.nodes.size());
    node.reads = std::move(reads), node.writes = std::move(writes), node.in_place = std::move(in_place);
    program.nodes.push_back(std::move(node));
    scratch_bytes.push_back(scratch);
  }
  size_t offset(BufferId id) const { return plan.buffer_offset[id]; }
};

// Runs the plan over an arena whose cells remember who wrote them last. A node uses its scratch, its reads and its
// writes all at once, so nothing of these may touch, unless a write takes the place of a read as the node permits.
class Arena {
 public:
  explicit Arena(const Planned& planned) : p_(planned), cells_(planned.plan.arena_bytes / kBufferAlignment, kFree) {}

  void run() {
    for (size_t i = 0; i < p_.program.nodes.size(); ++i) {
      const Node& node = p_.program.nodes[i];
      SCOPED_TRACE(node.name);
      own(p_.plan.scratch_offset[i], p_.scratch_bytes[i], kScratch);
      for (BufferId id : node.reads) expect_owned(id);
      for (size_t w = 0; w < node.writes.size(); ++w) {
        const BufferId id = node.writes[w];
        if (!planned(id)) continue;
        for (size_t r = 0; r < node.reads.size(); ++r) {
          const BufferId from = node.reads[r];
          if (!planned(from) || from == id || !touch(from, id)) continue;
          EXPECT_TRUE(permitted(node, static_cast<int>(w), from)) << name(id) << " lies over " << name(from);
          EXPECT_EQ(p_.offset(from), p_.offset(id));
          EXPECT_EQ(p_.buffer_bytes[from], p_.buffer_bytes[id]);
          ++in_place_;
        }
        for (size_t other = 0; other < w; ++other) {
          EXPECT_FALSE(planned(node.writes[other]) && touch(node.writes[other], id)) << "two results in one place";
        }
        own(p_.offset(id), p_.buffer_bytes[id], id);
      }
      expect_cells(p_.plan.scratch_offset[i], p_.scratch_bytes[i], kScratch);
      if (testing::Test::HasFailure()) return;
    }
  }
  int in_place() const { return in_place_; }

 private:
  static constexpr int kFree = -1, kScratch = -2;

  bool planned(BufferId id) const { return !is_persistent(p_.program.buffers[id].role); }
  std::string name(BufferId id) const { return p_.program.buffers[id].name; }
  bool touch(BufferId a, BufferId b) const {
    return p_.offset(a) < p_.offset(b) + align_up(p_.buffer_bytes[b]) &&
           p_.offset(b) < p_.offset(a) + align_up(p_.buffer_bytes[a]);
  }
  // By the node, and the read is one read only: another use of the same buffer would see it change.
  static bool permitted(const Node& node, int write, BufferId from) {
    if (std::count(node.reads.begin(), node.reads.end(), from) != 1) return false;
    return std::any_of(node.in_place.begin(), node.in_place.end(),
                       [&](const InPlace& pair) { return pair.write == write && node.reads[pair.read] == from; });
  }
  void own(size_t offset, size_t bytes, int owner) {
    if (bytes == 0) return;
    ASSERT_EQ(offset % kBufferAlignment, 0u);
    ASSERT_LE(offset + align_up(bytes), p_.plan.arena_bytes);
    for (size_t i = 0; i < align_up(bytes) / kBufferAlignment; ++i) cells_[offset / kBufferAlignment + i] = owner;
  }
  void expect_cells(size_t offset, size_t bytes, int owner) {
    for (size_t i = 0; i < align_up(bytes) / kBufferAlignment; ++i) {
      ASSERT_EQ(cells_[offset / kBufferAlignment + i], owner) << "at " << offset + i * kBufferAlignment;
    }
  }
  void expect_owned(BufferId id) {
    if (!planned(id)) return;
    ASSERT_NE(p_.offset(id), MemoryPlan::kNoOffset);
    SCOPED_TRACE("reads " + name(id));
    expect_cells(p_.offset(id), p_.buffer_bytes[id], id);
  }

  const Planned& p_;
  std::vector<int> cells_;
  int in_place_ = 0;
};

// Most bytes alive at one node, counted from the offsets.
size_t most_alive(const Planned& p) {
  const size_t num_nodes = p.program.nodes.size();
  std::vector<size_t> first(p.program.buffers.size(), SIZE_MAX), last(p.program.buffers.size(), 0);
  for (size_t i = 0; i < num_nodes; ++i) {
    for (const auto& ids : {p.program.nodes[i].reads, p.program.nodes[i].writes}) {
      for (BufferId id : ids) first[id] = std::min(first[id], i), last[id] = i;
    }
  }
  size_t most = 0;
  for (size_t i = 0; i < num_nodes; ++i) {
    std::map<size_t, size_t> alive;  // by offset: what lies in place counts once
    for (size_t id = 0; id < first.size(); ++id) {
      if (first[id] <= i && i <= last[id] && !is_persistent(p.program.buffers[id].role)) {
        alive[p.plan.buffer_offset[id]] = align_up(p.buffer_bytes[id]);
      }
    }
    size_t bytes = align_up(p.scratch_bytes[i]);
    for (const auto& [offset, size] : alive) bytes += size;
    most = std::max(most, bytes);
  }
  return most;
}

// Nodes that read some of what is there and write something new, with whatever permissions.
Planned random_program(uint64_t seed) {
  const RandomStream random(seed, 1, 0);
  uint64_t next = 0;
  auto below = [&](size_t bound) { return static_cast<size_t>(random.at(next++)[0]) % bound; };
  Planned p;
  std::vector<BufferId> there;
  for (int i = 0; i < 3; ++i) there.push_back(p.buffer(64 * (1 + below(9)), BufferRole::Weight));
  const size_t num_nodes = 5 + below(40);
  for (size_t i = 0; i < num_nodes; ++i) {
    std::vector<BufferId> reads, writes;
    const size_t num_reads = below(4), num_writes = 1 + below(2);
    for (size_t r = 0; r < num_reads; ++r) {
      // Mostly recent buffers, now and then an old one, sometimes one twice.
      const size_t back = below(4) == 0 ? below(there.size()) : below(std::min<size_t>(there.size(), 4));
      reads.push_back(there[there.size() - 1 - back]);
    }
    for (size_t w = 0; w < num_writes; ++w) {
      // Few sizes, so that places fit; some not a multiple of the alignment.
      writes.push_back(p.buffer(below(8) == 0 ? 1 + below(300) : 64 * (1 + below(5))));
    }
    std::vector<InPlace> in_place;
    for (size_t k = 0; k < below(4) && num_reads > 0; ++k) {
      in_place.push_back({static_cast<int>(below(num_writes)), static_cast<int>(below(num_reads))});
    }
    there.insert(there.end(), writes.begin(), writes.end());
    p.node(std::move(reads), std::move(writes), std::move(in_place), below(3) == 0 ? 1 + below(500) : 0);
  }
  p.make();
  return p;
}

TEST(MemoryPlan, NoTwoLiveBuffersOverlap) {
  int in_place = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE("program " + std::to_string(seed));
    const Planned p = random_program(seed);
    Arena arena(p);
    arena.run();
    if (HasFailure()) return;
    in_place += arena.in_place();
    EXPECT_EQ(p.plan.floor_bytes, most_alive(p));
    EXPECT_LE(p.plan.floor_bytes, p.plan.arena_bytes);
  }
  EXPECT_GT(in_place, 300) << "the programs leave in-place untested";
}

constexpr size_t kUnit = kBufferAlignment;

TEST(MemoryPlan, AWriteTakesThePlaceOfAReadThatDies) {
  Planned p;
  const BufferId a = p.buffer(2 * kUnit), b = p.buffer(2 * kUnit), c = p.buffer(2 * kUnit);
  p.node({}, {a});
  p.node({a}, {b}, {{0, 0}});
  p.node({b}, {c}, {{0, 0}});
  p.make();
  EXPECT_EQ(p.offset(a), p.offset(b));
  EXPECT_EQ(p.offset(b), p.offset(c));
  EXPECT_EQ(p.plan.arena_bytes, 2 * kUnit);
}

TEST(MemoryPlan, AReadThatIsNeededLaterKeepsItsPlace) {
  Planned p;
  const BufferId a = p.buffer(2 * kUnit), b = p.buffer(2 * kUnit), c = p.buffer(2 * kUnit);
  p.node({}, {a});
  p.node({a}, {b}, {{0, 0}});
  p.node({a, b}, {c}, {{0, 0}, {0, 1}});
  p.make();
  EXPECT_NE(p.offset(a), p.offset(b));
  EXPECT_EQ(p.offset(c), p.offset(a));
  EXPECT_EQ(p.plan.arena_bytes, 4 * kUnit);
}

TEST(MemoryPlan, AReadOfAnotherSizeOrReadTwiceKeepsItsPlace) {
  Planned p;
  const BufferId a = p.buffer(2 * kUnit), b = p.buffer(kUnit), c = p.buffer(kUnit);
  p.node({}, {a});
  p.node({a}, {b}, {{0, 0}});
  p.node({b, b}, {c}, {{0, 0}});
  p.make();
  EXPECT_EQ(p.plan.floor_bytes, 3 * kUnit);
  EXPECT_NE(p.offset(b), p.offset(c));
}

TEST(MemoryPlan, TwoWritesNeverTakeOnePlace) {
  Planned p;
  const BufferId a = p.buffer(kUnit), b = p.buffer(kUnit), c = p.buffer(kUnit);
  p.node({}, {a});
  p.node({a}, {b, c}, {{0, 0}, {1, 0}});
  p.make();
  EXPECT_EQ(p.offset(b), p.offset(a));
  EXPECT_NE(p.offset(c), p.offset(a));
}

TEST(MemoryPlan, PersistentBuffersAreNotInTheArena) {
  Planned p;
  const BufferId weight = p.buffer(1 << 20, BufferRole::Weight), a = p.buffer(kUnit), b = p.buffer(1 << 20);
  p.node({weight}, {a}, {{0, 0}});
  p.node({weight, a}, {b, weight}, {{0, 0}});
  p.make();
  EXPECT_EQ(p.offset(weight), MemoryPlan::kNoOffset);
  EXPECT_EQ(p.plan.arena_bytes, (1u << 20) + kUnit);
}

TEST(MemoryPlan, SaysWhatIsAliveAtThePeak) {
  Planned p;
  const BufferId a = p.buffer(kUnit), b = p.buffer(10 * kUnit), c = p.buffer(kUnit), d = p.buffer(kUnit);
  p.node({}, {a});
  p.node({a}, {b}, {}, kUnit + 36);
  p.node({b}, {c});
  p.node({c}, {d});
  p.make();
  EXPECT_EQ(p.plan.peak_node, 1u);
  EXPECT_EQ(p.plan.alive_at_peak, (std::vector<BufferId>{a, b}));
  EXPECT_EQ(p.plan.scratch_at_peak, 2 * kUnit);
  EXPECT_EQ(p.plan.floor_bytes, (1 + 10 + 2) * kUnit);
}

TEST(MemoryPlan, AnEmptyProgramTakesNothing) {
  Planned p;
  p.make();
  EXPECT_EQ(p.plan.arena_bytes, 0u);
}

// The models' real programs, without workspace: layouts are the backend's affair, the rules are the same.
TEST(MemoryPlan, TheModelsProgramsAreSafe) {
  for (const char* name : {"alexnet", "vgg16_bn", "resnet50"}) {
    const job::Model model{.name = name, .classes = 10, .image_size = 64};
    const graph::Graph graph = graph::fuse(model::build(model, 2, 0.0));
    for (int microbatches : {0, 1, 2}) {
      SCOPED_TRACE(std::string(name) + (microbatches ? " training" : " evaluation"));
      Planned p;
      p.program = microbatches ? graph::training_program(graph, {.microbatches = microbatches})
                               : graph::evaluation_program(graph);
      for (const graph::Buffer& buffer : p.program.buffers) {
        p.buffer_bytes.push_back(static_cast<size_t>(buffer.shape.elements()) * bytes_of(buffer.dtype));
      }
      p.scratch_bytes.assign(p.program.nodes.size(), 0);
      p.make();
      Arena arena(p);
      arena.run();
      // Evaluating AlexNet, every ReLU is part of what comes before it: nothing is left to be done in place.
      if (microbatches > 0 || std::string(name) != "alexnet") {
        EXPECT_GT(arena.in_place(), 0);
      }
      EXPECT_EQ(p.plan.floor_bytes, most_alive(p));
    }
  }
}

}  // namespace
}  // namespace millrace::memory
