// Processes under mpirun whose devices are joined: messages and sums go by the fabric, in the same bits as through the
// host, and where it cannot be they go through the host and say why. The processes are this program, started again.
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <random>

#include "cli/mpi_runner.h"
#include "comm/file_fabric.h"
#include "millrace/comm/process.h"

namespace millrace::comm {
namespace {

using Breaks = FileFabric::Breaks;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kFolder = "MILLRACE_TEST_FABRIC";
constexpr int kProcesses = 3, kEndedCode = 42;

// What each process does. Not to be run by itself.
class DISABLED_OneOfSeveral : public testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv(kFolder);
    if (!folder) GTEST_SKIP() << "is started by MpiDevices";
    folder_ = folder;
    process_ = make_mpi_process();
  }

  std::string own_device() const { return "gpu" + std::to_string(process_->rank()); }

  // Every worker to every worker, itself too, by tag = from * n + to, and sums over all and over the odd ones out.
  static Topology everyone() {
    Topology topology{.num_workers = kProcesses, .num_tags = kProcesses * kProcesses, .groups = {}};
    for (int from = 0; from < kProcesses; ++from) {
      for (int to = 0; to < kProcesses; ++to) topology.pairs.emplace_back(from, to);
    }
    topology.groups = {{{0, 1, 2}, 2}, {{2, 0}, 1}, {{0, 1, 2}, 1, true}};
    return topology;
  }

  // Some rounds of all that a run does; everything that was received and summed.
  std::vector<float> exchange(Endpoint& endpoint) const {
    constexpr size_t kFloats = 5000;
    const int me = endpoint.worker();
    std::mt19937 random(me);
    std::vector<float> all;
    for (int round = 0; round < 20; ++round) {
      const auto value = [&](int worker, size_t i) {
        return std::ldexp(1.0f + 0.1f * static_cast<float>(worker + round), static_cast<int>((i * 7 + worker) % 30));
      };
      std::vector<std::vector<float>> sent(kProcesses), received(kProcesses);
      std::vector<Ticket> tickets;
      std::vector<std::pair<int, bool>> calls;
      for (int w = 0; w < kProcesses; ++w) {
        sent[w].resize(kFloats + w);
        for (size_t i = 0; i < sent[w].size(); ++i) sent[w][i] = value(me, i);
        received[w].assign(kFloats + me, 0);
        calls.insert(calls.end(), {{w, true}, {w, false}});
      }
      std::shuffle(calls.begin(), calls.end(), random);
      for (const auto& [w, sends] : calls) {
        tickets.push_back(
            sends ? endpoint.send(w, me * kProcesses + w, sent[w].data(), sent[w].size() * sizeof(float))
                  : endpoint.receive(w, w * kProcesses + me, received[w].data(), received[w].size() * sizeof(float)));
      }
      std::vector<std::vector<float>> sums(4, std::vector<float>(kFloats));
      for (auto& sum : sums) {
        for (size_t i = 0; i < sum.size(); ++i) sum[i] = value(me, i);
      }
      for (int s = 0; s < 2; ++s) endpoint.start_sum(0, s, sums[s]);
      if (me != 1) endpoint.start_sum(1, 0, sums[2]);
      endpoint.start_sum(2, 0, sums[3]);
      std::shuffle(tickets.begin(), tickets.end(), random);
      for (Ticket& ticket : tickets) endpoint.wait(ticket);
      for (int s = 0; s < 2; ++s) endpoint.await_sum(0, s);
      if (me != 1) endpoint.await_sum(1, 0);
      endpoint.await_sum(2, 0);
      for (const auto& values : received) all.insert(all.end(), values.begin(), values.end());
      for (const auto& values : sums) all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  struct Exchange {
    std::string way;
    std::vector<float> values;
    std::vector<int64_t> bytes_sent;
    size_t copied = 0;
  };
  Exchange over(const Topology& topology, JoinedMemory memory) {
    process_->open(topology);
    const auto endpoint = process_->connect(process_->rank(), memory);
    Exchange result{endpoint->way(), exchange(*endpoint), endpoint->bytes_sent(), memory.copied};
    process_->gather("done");
    process_->broadcast("all done");
    return result;
  }

  std::string folder_;
  std::unique_ptr<Process> process_;
};

TEST_F(DISABLED_OneOfSeveral, Exchanges) {
  const Exchange joined = over(everyone(), {folder_, own_device()});
  EXPECT_EQ(joined.way, "by files");
  // Only what a worker sends to itself.
  EXPECT_EQ(joined.copied, 20 * (5000 + static_cast<size_t>(process_->rank())) * sizeof(float));

  Topology unjoined = everyone();
  unjoined.joins_devices = false;
  const Exchange staged = over(unjoined, {folder_, own_device()});
  EXPECT_EQ(staged.way, "through the host: parallel.nccl is off");
  EXPECT_TRUE(joined.values == staged.values);
  EXPECT_EQ(joined.bytes_sent, staged.bytes_sent);
  EXPECT_GT(staged.copied, joined.copied);

  const Exchange lacking = over(everyone(), {folder_, own_device(), process_->rank() != 1});
  EXPECT_THAT(lacking.way, StartsWith("through the host: the program on "));
  EXPECT_THAT(lacking.way, HasSubstr("was built without NCCL"));
  EXPECT_TRUE(joined.values == lacking.values);

  const Exchange shared = over(everyone(), {folder_, process_->rank() == 0 ? "other" : "one"});
  EXPECT_THAT(shared.way, StartsWith("through the host: workers 1 and 2 share a GPU of "));
  EXPECT_TRUE(joined.values == shared.values);

  const Exchange unplugged =
      over(everyone(), {folder_, own_device(), true, process_->rank() == 2 ? Breaks::AtOnce : Breaks::Never});
  EXPECT_THAT(unplugged.way, HasSubstr(": there is no plug"));
  EXPECT_TRUE(joined.values == unplugged.values);

  const Exchange broken = over(everyone(), {folder_, own_device(), true, Breaks::Groups});
  EXPECT_EQ(broken.way, "through the host: the switch is off");
  EXPECT_TRUE(joined.values == broken.values);

  // Once more, since a run may be a succession of trainings.
  EXPECT_TRUE(joined.values == over(everyone(), {folder_, own_device()}).values);
}

TEST_F(DISABLED_OneOfSeveral, IsNotWaitedForWhenItFails) {
  process_->open(everyone());
  if (process_->rank() == 1) {
    process_->decline_to_join();
  } else {
    JoinedMemory memory(folder_, own_device());
    EXPECT_THAT(process_->connect(process_->rank(), memory)->way(), HasSubstr(" has failed"));
  }
  process_->gather("done");
}

TEST_F(DISABLED_OneOfSeveral, CannotJoin) {
  process_->open(everyone());
  JoinedMemory memory(folder_, own_device(), true, process_->rank() == 1 ? Breaks::Pairs : Breaks::Never);
  process_->connect(process_->rank(), memory);
}

TEST_F(DISABLED_OneOfSeveral, IsEnded) {
  process_->open(everyone());
  JoinedMemory memory(folder_, own_device());
  std::vector<float> data(100);
  {
    const auto endpoint = process_->connect(process_->rank(), memory);
    const int me = process_->rank(), from = (me + 1) % kProcesses;
    Ticket never = endpoint->receive(from, from * kProcesses + me, data.data(), 4);
    if (me == 0) endpoint->start_sum(0, 0, data);
    process_->abort();
    EXPECT_THROW(endpoint->wait(never), Aborted);
    EXPECT_THROW(endpoint->await_sum(0, 0), Aborted);
  }
  end_failed_process(HasFailure() ? 1 : kEndedCode);
}

class MpiDevices : public cli::MpiTest {
 protected:
  cli::Outcome run_all(const std::string& test) {
    return run_disabled(kProcesses, "OneOfSeveral." + test, std::string(kFolder) + "=" + folder_.path().string());
  }

 private:
  FabricFolder folder_;
};

TEST_F(MpiDevices, ExchangeWhatTheHostWould) {
  const cli::Outcome outcome = run_all("Exchanges");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("[  PASSED  ] 1 test")) << outcome.err;
}

TEST_F(MpiDevices, DoNotWaitForOneThatFails) {
  const cli::Outcome outcome = run_all("IsNotWaitedForWhenItFails");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
}

TEST_F(MpiDevices, EndWhereOneCannotJoinAndOthersWaitForIt) {
  const cli::Outcome outcome = run_all("CannotJoin");
  EXPECT_EQ(outcome.exit_code, 1) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("could not be joined to the others: the cable is loose"));
}

TEST_F(MpiDevices, EndWithTheRun) {
  const cli::Outcome outcome = run_all("IsEnded");
  EXPECT_EQ(outcome.exit_code, kEndedCode) << outcome.out << outcome.err;
}

}  // namespace
}  // namespace millrace::comm
