#include "millrace/comm/mpi/joining.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "millrace/comm/mpi/check.h"
#include "millrace/comm/process.h"

namespace millrace::comm {
namespace {

// What a process says of its device.
struct Card {
  char host[64] = {};
  char fabric[64] = {};   // its name; empty: none
  char why[256] = {};     // there is none
  char device[256] = {};  // which one it is
  int most_lanes = 0;
  bool failed = false;
};

std::vector<Card> exchange(MPI_Comm comm, const Card& own) {
  int size = 1;
  MPI_Comm_size(comm, &size);
  std::vector<Card> cards(size);
  check_mpi(MPI_Allgather(&own, sizeof own, MPI_BYTE, cards.data(), sizeof own, MPI_BYTE, comm),
            "telling which device this is");
  return cards;
}

template <size_t N>
void write(char (&to)[N], const std::string& text) {
  std::strncpy(to, text.c_str(), N - 1);
}

int lanes_of(const Topology& topology, int worker) {
  const auto has_it = [&](const auto& pair) {
    return pair.first != pair.second && (pair.first == worker || pair.second == worker);
  };
  auto lanes = std::count_if(topology.pairs.begin(), topology.pairs.end(), has_it);
  for (const Group& group : topology.groups) {
    if (group.buckets == 0 || group.on_host || group.workers.size() < 2) continue;
    lanes += std::count(group.workers.begin(), group.workers.end(), worker);
  }
  return static_cast<int>(lanes);
}

}  // namespace

std::string reason_not_to_join(MPI_Comm comm, const Topology& topology, const backend::Fabric* fabric,
                               const std::string& why) {
  if (!topology.joins_devices) return "parallel.nccl is off";  // to everyone
  Card own;
  write(own.why, why);
  write(own.host, host_name());
  if (fabric) {
    write(own.fabric, fabric->name());
    write(own.device, fabric->device());
    own.most_lanes = fabric->most_lanes();
  }
  const std::vector<Card> cards = exchange(comm, own);
  const auto size = static_cast<int>(cards.size());
  for (const Card& card : cards) {
    if (card.failed) return fmt::format("the process on {} has failed", card.host);
  }
  for (int r = 0; r < size; ++r) {
    if (cards[r].fabric[0]) continue;
    if (cards[r].why[0]) return fmt::format("{}: {}", cards[r].host, cards[r].why);
    return fmt::format("the program on {} was built without NCCL; install libnccl-dev and build again", cards[r].host);
  }
  for (int r = 0; r < size; ++r) {
    if (std::strcmp(cards[r].fabric, cards[0].fabric) != 0) {
      return fmt::format("{} has {} and {} has {}", cards[0].host, cards[0].fabric, cards[r].host, cards[r].fabric);
    }
    for (int other = 0; other < r; ++other) {
      if (std::strcmp(cards[r].device, cards[other].device) != 0) continue;
      return fmt::format("workers {} and {} share a GPU of {}", other, r, cards[r].host);
    }
    const int lanes = lanes_of(topology, r);
    if (lanes <= cards[r].most_lanes) continue;
    return fmt::format("worker {} exchanges with so many others that it needs {} streams, and its GPU keeps {} apart",
                       r, lanes, cards[r].most_lanes);
  }
  return {};
}

void tell_of_failure(MPI_Comm comm) {
  Card own;
  write(own.host, host_name());
  own.failed = true;
  exchange(comm, own);
}

std::optional<std::string> first_failure(MPI_Comm comm, const std::string& failure, double seconds) {
  int size = 1;
  MPI_Comm_size(comm, &size);
  constexpr size_t kBytes = 512;
  // They outlive this call where it is not answered.
  auto own = std::make_unique<std::array<char, kBytes>>();
  auto all = std::make_unique<std::vector<std::array<char, kBytes>>>(size);
  own->fill(0);
  std::copy_n(failure.begin(), std::min(failure.size(), kBytes - 1), own->begin());
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Iallgather(own->data(), kBytes, MPI_BYTE, all->data(), kBytes, MPI_BYTE, comm, &request),
            "telling whether devices were joined");
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (int complete = 0; !complete;) {
    check_mpi(MPI_Test(&request, &complete, MPI_STATUS_IGNORE), "waiting for devices to be joined");
    if (complete) break;
    if (!failure.empty() && std::chrono::steady_clock::now() > give_up) {
      (void)own.release();
      (void)all.release();
      return std::nullopt;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (const auto& text : *all) {
    if (text[0]) return std::string(text.data());
  }
  return std::string();
}

}  // namespace millrace::comm
