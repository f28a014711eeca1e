// Workers whose devices a fabric joins: every message arrives whole and where it belongs, whatever the order of sends
// and receives, and sums have the bits of an addition in the order of the members.
#include "millrace/comm/device_endpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>
#include <random>

#include "comm/file_fabric.h"
#include "millrace/comm/local/hub.h"

namespace millrace::comm {
namespace {

// Hands notices on after a while; those of two workers never overtake each other.
class Post {
 public:
  explicit Post(int workers) : boxes_(workers) {}

  void tell(int from, int to, const Notice& notice) {
    const std::lock_guard lock(mutex_);
    boxes_[to][from].push_back(notice);
  }
  bool next(int worker, std::mt19937& random, Notice& notice) {
    const std::lock_guard lock(mutex_);
    for (auto& [from, box] : boxes_[worker]) {
      if (box.empty() || random() % 2 == 0) continue;
      notice = box.front();
      box.pop_front();
      return true;
    }
    return false;
  }
  void put(const std::vector<int>& workers, const backend::Fabric::Id& id) {
    const std::lock_guard lock(mutex_);
    for (const int worker : workers) ids_[{workers[0], worker}].push_back(id);
  }
  backend::Fabric::Id get(int from, int worker) {
    for (;; std::this_thread::yield()) {
      const std::lock_guard lock(mutex_);
      auto& ids = ids_[{from, worker}];
      if (ids.empty()) continue;
      const backend::Fabric::Id id = ids.front();
      ids.pop_front();
      return id;
    }
  }

 private:
  std::mutex mutex_;
  std::vector<std::map<int, std::deque<Notice>>> boxes_;  // by receiver and sender
  std::map<std::pair<int, int>, std::deque<backend::Fabric::Id>> ids_;
};

class PostSideband : public Sideband {
 public:
  PostSideband(Post& post, int worker) : post_(post), worker_(worker), random_(worker) {}
  void share(backend::Fabric::Id& id, std::span<const int> workers) override {
    if (workers[0] == worker_) return post_.put({workers.begin(), workers.end()}, id);
    id = post_.get(workers[0], worker_);
  }
  void tell(int worker, const Notice& notice) override { post_.tell(worker_, worker, notice); }
  bool next(Notice& notice) override { return post_.next(worker_, random_, notice); }

 private:
  Post& post_;
  const int worker_;
  std::mt19937 random_;
};

// Calls in threads of their own, and what one of them throws.
void in_threads(int count, const std::function<void(int)>& call) {
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> failures(count);
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      try {
        call(i);
      } catch (...) {
        failures[i] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

class World {
 public:
  explicit World(const Topology& topology) : topology_(topology), post_(topology.num_workers), hub_(topology) {
    fabrics_.resize(topology.num_workers);
    endpoints_.resize(topology.num_workers);
    for (int w = 0; w < topology.num_workers; ++w) {
      memory_.push_back(std::make_unique<JoinedMemory>(folder_.path(), std::to_string(w)));
    }
    in_threads(topology.num_workers, [&](int w) {
      auto fabric = memory_[w]->make_fabric();
      fabrics_[w] = static_cast<FileFabric*>(fabric.get());
      endpoints_[w] = std::make_unique<DeviceEndpoint>(
          topology_, *memory_[w], std::move(fabric), std::make_unique<PostSideband>(post_, w), hub_.connect(w, host_));
    });
  }

  DeviceEndpoint& operator[](int worker) { return *endpoints_[worker]; }
  FileFabric& fabric(int worker) { return *fabrics_[worker]; }
  JoinedMemory& memory(int worker) { return *memory_[worker]; }

  // Both ends move on until it is there.
  bool arrives(int worker, const Ticket& ticket) {
    for (int i = 0; i < 200; ++i) {
      for (auto& endpoint : endpoints_) endpoint->advance();
      if (endpoints_[worker]->done(ticket)) return true;
    }
    return false;
  }

 private:
  const Topology topology_;
  FabricFolder folder_;
  backend::Memory host_;
  Post post_;
  LocalHub hub_;
  std::vector<std::unique_ptr<JoinedMemory>> memory_;
  std::vector<FileFabric*> fabrics_;
  std::vector<std::unique_ptr<DeviceEndpoint>> endpoints_;
};

Topology two_workers(int tags) { return {.num_workers = 2, .num_tags = tags, .groups = {}, .pairs = {{0, 1}, {1, 0}}}; }

TEST(DeviceEndpoint, MessagesGoFromDeviceToDevice) {
  World world(two_workers(4));
  std::vector<int> sent(1000), received(1000, -1);
  std::iota(sent.begin(), sent.end(), 0);
  const size_t bytes = sent.size() * sizeof(int);
  for (int round = 0; round < 3; ++round) {
    const Ticket incoming = world[1].receive(0, 2, received.data(), bytes);
    const Ticket outgoing = world[0].send(1, 2, sent.data(), bytes);
    EXPECT_TRUE(world.arrives(1, incoming));
    EXPECT_TRUE(world.arrives(0, outgoing));
    EXPECT_EQ(received, sent);
    for (int& value : sent) ++value;
  }
  EXPECT_EQ(world[0].bytes_sent()[1], static_cast<int64_t>(3 * bytes));
  EXPECT_EQ(world[1].bytes_sent()[0], 0);
  EXPECT_GT(world[0].transfer_s(), 0);
  EXPECT_GT(world[0].seconds_per_byte(), 0);
  EXPECT_EQ(world.memory(0).copied + world.memory(1).copied, 0u);
}

TEST(DeviceEndpoint, AMessageNobodyReceivesYetHoldsUpNone) {
  World world(two_workers(3));
  int late = 1, now = 2, got_late = 0, got_now = 0;
  const Ticket first = world[0].send(1, 0, &late, sizeof late);
  const Ticket second = world[0].send(1, 1, &now, sizeof now);
  const Ticket incoming = world[1].receive(0, 1, &got_now, sizeof got_now);
  EXPECT_TRUE(world.arrives(1, incoming));
  EXPECT_TRUE(world.arrives(0, second));
  EXPECT_EQ(got_now, 2);
  EXPECT_FALSE(world.arrives(0, first));
  const Ticket missing = world[1].receive(0, 0, &got_late, sizeof got_late);
  EXPECT_TRUE(world.arrives(1, missing));
  EXPECT_TRUE(world.arrives(0, first));
  EXPECT_EQ(got_late, 1);
}

TEST(DeviceEndpoint, AWorkerSendsToItself) {
  World world(two_workers(2));
  for (int round = 0; round < 2; ++round) {
    int sent = 5 + round, received = 0;
    const Ticket incoming = world[0].receive(0, 1, &received, sizeof received);
    EXPECT_FALSE(world[0].done(incoming));
    const Ticket outgoing = world[0].send(0, 1, &sent, sizeof sent);
    EXPECT_TRUE(world[0].done(incoming));
    EXPECT_TRUE(world[0].done(outgoing));
    EXPECT_EQ(received, sent);
  }
}

TEST(DeviceEndpoint, TwoSizesOfAMessageAreRefused) {
  World world(two_workers(1));
  int value = 0;
  world[1].receive(0, 0, &value, 2);
  world[0].send(1, 0, &value, 4);
  while (!world[0].advance()) {
  }
  for (int i = 0; i < 100; ++i) world[0].advance();
  EXPECT_THROW(world[0].done({1, 0}), std::runtime_error);
}

// Every worker opens, sends and awaits in an order of its own, while another thread serves.
TEST(DeviceEndpoint, AnyOrderOfSendsAndReceivesArrives) {
  constexpr int kWorkers = 4, kTags = 40, kRounds = 25;
  struct Edge {
    int from, to;
    size_t bytes;
  };
  std::mt19937 random(7);
  std::vector<Edge> edges;
  Topology topology{.num_workers = kWorkers, .num_tags = kTags, .groups = {}};
  for (int tag = 0; tag < kTags; ++tag) {
    const int from = static_cast<int>(random() % kWorkers), to = static_cast<int>(random() % kWorkers);
    edges.push_back({from, to, 1 + random() % 4000});
    topology.pairs.emplace_back(from, to);
  }
  std::sort(topology.pairs.begin(), topology.pairs.end());
  topology.pairs.erase(std::unique(topology.pairs.begin(), topology.pairs.end()), topology.pairs.end());
  World world(topology);

  const auto byte_of = [](int tag, int round, size_t i) {
    return static_cast<uint8_t>(static_cast<size_t>(tag) * 31 + static_cast<size_t>(round) * 7 + i);
  };
  std::atomic<int> working{kWorkers};
  in_threads(2 * kWorkers, [&](int thread) {
    const int w = thread % kWorkers;
    if (thread >= kWorkers) {
      while (working > 0) {
        world[w].advance();
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
      return;
    }
    // Who fails ends the others.
    struct AtEnd {
      World& world;
      std::atomic<int>& working;
      bool finished = false;
      ~AtEnd() {
        --working;
        for (int other = 0; other < kWorkers && !finished; ++other) world[other].abort();
      }
    } at_end{world, working};
    std::mt19937 own(w);
    std::map<std::pair<int, bool>, std::vector<uint8_t>> data;
    for (int round = 0; round < kRounds; ++round) {
      std::vector<std::pair<int, bool>> calls;
      for (int tag = 0; tag < kTags; ++tag) {
        if (edges[tag].from == w) calls.emplace_back(tag, true);
        if (edges[tag].to == w) calls.emplace_back(tag, false);
      }
      std::shuffle(calls.begin(), calls.end(), own);
      std::vector<std::pair<Ticket, std::pair<int, bool>>> tickets;
      for (const auto& [tag, sends] : calls) {
        std::vector<uint8_t>& bytes = data[{tag, sends}];
        bytes.assign(edges[tag].bytes, 0);
        if (sends) {
          for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = byte_of(tag, round, i);
          tickets.push_back({world[w].send(edges[tag].to, tag, bytes.data(), bytes.size()), {tag, true}});
        } else {
          tickets.push_back({world[w].receive(edges[tag].from, tag, bytes.data(), bytes.size()), {tag, false}});
        }
        if (own() % 4 == 0) std::this_thread::yield();
      }
      std::shuffle(tickets.begin(), tickets.end(), own);
      for (auto& [ticket, call] : tickets) {
        world[w].wait(ticket);
        if (call.second) continue;
        const std::vector<uint8_t>& bytes = data[call];
        for (size_t i = 0; i < bytes.size(); ++i) {
          ASSERT_EQ(bytes[i], byte_of(call.first, round, i)) << "message " << call.first << ", round " << round;
        }
      }
    }
    at_end.finished = true;
  });
}

TEST(DeviceEndpoint, SumsAddInTheOrderOfTheMembers) {
  constexpr int kWorkers = 3, kRounds = 5;
  // Not everyone is in every group, nor the lowest number first.
  const Topology topology{.num_workers = kWorkers,
                          .num_tags = 0,
                          .groups = {{{0, 1, 2}, 2}, {{2, 0}, 1}, {{1}, 1}, {{0, 1, 2}, 0}, {{0, 1, 2}, 1, true}}};
  World world(topology);
  const auto value = [](int worker, int round, size_t i) {  // of sizes that make the order show
    return std::ldexp(1.0f + 0.1f * static_cast<float>(worker + round), static_cast<int>((i * 7 + worker * 11) % 30));
  };
  in_threads(kWorkers, [&](int w) {
    for (int round = 0; round < kRounds; ++round) {
      std::vector<std::pair<int, int>> buckets{{0, 0}, {0, 1}, {4, 0}};
      if (w != 1) buckets.insert(buckets.begin() + 1, {1, 0});
      if (w == 1) buckets.emplace_back(2, 0);
      std::vector<std::vector<float>> data;
      for (const auto& [group, bucket] : buckets) {
        std::vector<float>& own = data.emplace_back(100 + static_cast<size_t>(group));
        for (size_t i = 0; i < own.size(); ++i) own[i] = value(w, round, i);
      }
      for (size_t b = 0; b < buckets.size(); ++b) world[w].start_sum(buckets[b].first, buckets[b].second, data[b]);
      for (const auto& [group, bucket] : buckets) world[w].await_sum(group, bucket);
      for (size_t b = 0; b < buckets.size(); ++b) {
        const std::vector<int>& members = topology.groups[buckets[b].first].workers;
        for (size_t i = 0; i < data[b].size(); ++i) {
          float expected = value(members[0], round, i);
          for (size_t m = 1; m < members.size(); ++m) expected += value(members[m], round, i);
          ASSERT_EQ(data[b][i], expected) << "group " << buckets[b].first << ", element " << i;
        }
      }
    }
  });
  // 2 (n - 1) / n of the bytes, a part to each; what a worker sums alone is sent to nobody.
  const int64_t of_three = 2 * (2 * 400 / 3) + 2 * 416 / 3, of_two = 2 * 404 / 2;
  EXPECT_EQ(world[0].bytes_sent(), (std::vector<int64_t>{0, kRounds * of_three, kRounds * (of_three + of_two)}));
  EXPECT_EQ(world[1].bytes_sent(), (std::vector<int64_t>{kRounds * of_three, 0, kRounds * of_three}));
  EXPECT_GT(world[0].transfer_s(), 0);
}

TEST(DeviceEndpoint, AnAbortEndsAllWaits) {
  World world({.num_workers = 2, .num_tags = 2, .groups = {{{0, 1}, 1}}, .pairs = {{0, 1}, {1, 0}}});
  int value = 0;
  std::vector<float> data(8);
  in_threads(3, [&](int thread) {
    if (thread == 0) {
      Ticket incoming = world[0].receive(1, 0, &value, sizeof value);
      EXPECT_THROW(world[0].wait(incoming), Aborted);
      EXPECT_THROW(world[0].send(1, 1, &value, sizeof value), Aborted);
    } else if (thread == 1) {
      world[1].start_sum(0, 0, data);
      EXPECT_THROW(world[1].await_sum(0, 0), Aborted);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      for (int w = 0; w < 2; ++w) {
        world[w].abort();
        world[w].abort();
      }
    }
  });
  EXPECT_TRUE(world.fabric(0).aborted && world.fabric(1).aborted);
  EXPECT_FALSE(world[0].advance());
}

}  // namespace
}  // namespace millrace::comm
