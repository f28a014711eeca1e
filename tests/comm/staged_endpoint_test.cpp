// Workers whose memory only they can reach: everything goes through the host, and comes out as it went in.
#include "millrace/comm/staged_endpoint.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "millrace/comm/local/hub.h"

namespace millrace::comm {
namespace {

// Memory that says it is a device's, and counts what is copied through it.
class DeviceMemory : public backend::Memory {
 public:
  bool on_host() const override { return false; }
  void copy(void* to, const void* from, size_t bytes) override {
    copied += bytes;
    Memory::copy(to, from, bytes);
  }
  size_t copied = 0;
};

class StagedEndpointTest : public testing::Test {
 protected:
  StagedEndpointTest() : hub_({2, 4, {{{0, 1}, 1}}}) {
    for (int w = 0; w < 2; ++w) {
      endpoints_.push_back(std::make_unique<StagedEndpoint>(hub_.connect(w, host_), 2, memory_[w]));
    }
  }

  backend::Memory host_;
  DeviceMemory memory_[2];
  LocalHub hub_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
};

TEST_F(StagedEndpointTest, MessagesArriveWhole) {
  std::vector<int> sent(100), received(100, -1);
  std::iota(sent.begin(), sent.end(), 0);
  const size_t bytes = sent.size() * sizeof(int);
  for (int round = 0; round < 3; ++round) {
    Ticket incoming = endpoints_[1]->receive(0, 2, received.data(), bytes);
    EXPECT_EQ(received[99], round == 0 ? -1 : 99 + round - 1);
    Ticket outgoing = endpoints_[0]->send(1, 2, sent.data(), bytes);
    endpoints_[0]->wait(outgoing);
    endpoints_[1]->wait(incoming);
    EXPECT_EQ(received, sent);
    for (int& value : sent) ++value;
  }
  EXPECT_EQ(memory_[0].copied, 3 * bytes);
  EXPECT_EQ(memory_[1].copied, 3 * bytes);
  EXPECT_EQ(endpoints_[0]->bytes_sent()[1], static_cast<int64_t>(3 * bytes));
}

TEST_F(StagedEndpointTest, SumsAreThoseOfAll) {
  std::vector<float> data[2] = {{1, 2, 3}, {10, 20, 30}};
  std::vector<std::thread> threads;
  for (int w = 0; w < 2; ++w) {
    threads.emplace_back([&, w] {
      endpoints_[w]->start_sum(0, 0, data[w]);
      endpoints_[w]->await_sum(0, 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(data[0], (std::vector<float>{11, 22, 33}));
  EXPECT_EQ(data[1], data[0]);
}

}  // namespace
}  // namespace millrace::comm
