// Processes are threads here, joined by a board.
#include "millrace/runtime/state_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

namespace millrace::runtime {
namespace {

using state::State;

class Board {
 public:
  explicit Board(int size) : meeting(size), texts(static_cast<size_t>(size)) {}

  std::barrier<> meeting;
  std::vector<std::string> texts;
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> parcels;  // from, to
  int64_t bytes = 0;
};

class BoardProcess : public comm::Process {
 public:
  BoardProcess(Board& board, int rank) : board_(board), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(board_.texts.size()); }
  int size_on_host() const override { return size(); }
  std::unique_ptr<comm::Process> beside() override { return nullptr; }
  void open(const comm::Topology&) override {}
  std::unique_ptr<comm::Endpoint> connect(int, backend::Memory&) override { return nullptr; }
  void tell(const comm::Event&) override {}
  std::optional<comm::Event> next_event(std::chrono::milliseconds) override { return std::nullopt; }
  void order(const comm::Order&) override {}
  void grant(int64_t) override {}
  comm::OrderBook& orders() override { return orders_; }
  void abort() override {}

  std::vector<std::string> gather(const std::string& text) override {
    board_.texts[static_cast<size_t>(rank_)] = text;
    board_.meeting.arrive_and_wait();
    std::vector<std::string> all;
    if (rank_ == 0) all = board_.texts;
    board_.meeting.arrive_and_wait();
    return all;
  }
  std::string broadcast(const std::string& text) override {
    if (rank_ == 0) board_.texts[0] = text;
    board_.meeting.arrive_and_wait();
    std::string copy = board_.texts[0];
    board_.meeting.arrive_and_wait();
    return copy;
  }
  void send(int to, std::span<const std::byte> bytes) override {
    const std::lock_guard lock(board_.mutex);
    board_.parcels[{rank_, to}].emplace_back(bytes.begin(), bytes.end());
    board_.bytes += static_cast<int64_t>(bytes.size());
    board_.changed.notify_all();
  }
  void receive(int from, std::span<std::byte> bytes) override {
    std::unique_lock lock(board_.mutex);
    auto& parcels = board_.parcels[{from, rank_}];
    board_.changed.wait(lock, [&] { return !parcels.empty(); });
    ASSERT_EQ(parcels.front().size(), bytes.size());
    std::copy(parcels.front().begin(), parcels.front().end(), bytes.begin());
    parcels.pop_front();
  }

 private:
  Board& board_;
  const int rank_;
  comm::OrderBook orders_;
};

state::Tensor tensor(const std::string& name, float kind) {
  state::Tensor made{{2, static_cast<int64_t>(name.size())}, {}};
  for (int64_t i = 0; i < made.shape.elements(); ++i) {
    made.data.push_back(kind + static_cast<float>(name.back()) + 0.01f * static_cast<float>(i));
  }
  return made;
}

// Of so many parameters, those of a stage.
State state_of(const std::vector<std::string>& names) {
  State made;
  for (const std::string& name : names) {
    made.params[name] = tensor(name, 0);
    made.velocity[name] = tensor(name, 1000);
    if (name != "frozen") made.second_moment[name] = tensor(name, 2000);
    made.updates[name] = 7;
  }
  return made;
}

struct Exchange {
  std::vector<State> got;
  std::vector<int64_t> moved_bytes;
  int64_t sent_bytes = 0;
};

Exchange exchange(const std::vector<std::vector<std::string>>& had,
                  const std::vector<std::vector<std::string>>& wanted) {
  const auto size = static_cast<int>(had.size());
  Board board(size);
  Exchange result{std::vector<State>(had.size()), std::vector<int64_t>(had.size())};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      BoardProcess process(board, rank);
      State own = state_of(had[rank]);
      if (rank == 0) {  // the others are not told
        own.step = 40;
        own.samples = 640;
        own.since = {20, 1};
      }
      const Session::Wanted wants = [&](const std::string& name) {
        return std::find(wanted[rank].begin(), wanted[rank].end(), name) != wanted[rank].end();
      };
      ExchangedState exchanged = exchange_state(process, std::move(own), wants);
      result.got[rank] = std::move(exchanged.state);
      result.moved_bytes[rank] = exchanged.moved_bytes;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < size; ++rank) {
    State expected = state_of(wanted[rank]);
    const State& got = result.got[rank];
    EXPECT_EQ(got.params, expected.params) << rank;
    EXPECT_EQ(got.velocity, expected.velocity) << rank;
    EXPECT_EQ(got.second_moment, expected.second_moment) << rank;
    EXPECT_EQ(got.step, 40);
    EXPECT_EQ(got.samples, 640);
    EXPECT_EQ(got.since, (job::SizedSince{20, 1}));
    for (const std::string& name : wanted[rank]) EXPECT_EQ(got.updates.at(name), 7);
    EXPECT_EQ(result.moved_bytes[rank], board.bytes) << "everyone knows what moved";
  }
  result.sent_bytes = board.bytes;
  return result;
}

// Of a parameter whose name has n letters each tensor has 2 n numbers.
constexpr int64_t kBytesOfALetter = 3 * 2 * sizeof(float);

TEST(StateExchange, WhatStaysDoesNotMove) {
  EXPECT_EQ(exchange({{"a", "b"}, {"c", "frozen"}}, {{"a", "b"}, {"c", "frozen"}}).sent_bytes, 0);
  EXPECT_EQ(exchange({{"a", "b"}, {"a", "b"}}, {{"a", "b"}, {"a", "b"}}).sent_bytes, 0) << "replicas have it all";
}

TEST(StateExchange, OnlyWhatAProcessLacksMoves) {
  EXPECT_EQ(exchange({{"a", "bb"}, {"ccc"}}, {{"a"}, {"bb", "ccc"}}).sent_bytes, 2 * kBytesOfALetter);
  EXPECT_EQ(exchange({{"a"}, {"b"}, {"c"}}, {{"b"}, {"c"}, {"a"}}).sent_bytes, 3 * kBytesOfALetter);
}

TEST(StateExchange, APipelineBecomesReplicasAndBack) {
  const std::vector<std::string> all{"a", "b", "c", "frozen"};
  exchange({{"a"}, {"b"}, {"c", "frozen"}}, {all, all, all});
  exchange({all, all, all}, {{"a"}, {"b"}, {"c", "frozen"}});
  EXPECT_EQ(exchange({{"a"}, {"a"}, {"b"}, {"b"}}, {{"a"}, {"b"}, {"b"}, {}}).sent_bytes, kBytesOfALetter);
}

}  // namespace
}  // namespace millrace::runtime
