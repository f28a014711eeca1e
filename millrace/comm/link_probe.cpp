#include "millrace/comm/link_probe.h"

#include <algorithm>
#include <thread>

#include "millrace/base/median.h"
#include "millrace/comm/local/hub.h"

namespace millrace::comm {
namespace {

enum Tag { kThere, kBack, kNumTags };

// The median time of a message one way. Each side has memory of its own to send from and to receive into.
double one_way_s(Endpoint& endpoint, size_t bytes, int repeats) {
  const bool first = endpoint.worker() == 0;
  const int peer = first ? 1 : 0;
  const std::vector<std::byte> sent(bytes, std::byte{1});
  std::vector<std::byte> received(bytes);
  const int warmup = 1 + repeats / 10;
  std::vector<double> round_s;
  for (int i = -warmup; i < repeats; ++i) {
    // Opened ahead of the message, as workers do.
    Ticket in = endpoint.receive(peer, first ? kBack : kThere, received.data(), bytes);
    const auto start = std::chrono::steady_clock::now();
    if (!first) endpoint.wait(in);
    Ticket out = endpoint.send(peer, first ? kThere : kBack, sent.data(), bytes);
    if (first) endpoint.wait(in);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    endpoint.wait(out);
    if (i >= 0) round_s.push_back(seconds);
  }
  return median(round_s) / 2;
}

}  // namespace

Topology probe_topology() {
  Topology topology;
  topology.num_workers = 2;
  topology.num_tags = kNumTags;
  topology.pairs = {{0, 1}, {1, 0}};
  return topology;
}

LinkFigures probe_link(Endpoint& endpoint, const ProbeOptions& options) {
  LinkFigures figures;
  figures.latency_s = one_way_s(endpoint, 8, options.small_repeats);
  const double large_s = one_way_s(endpoint, options.large_bytes, options.large_repeats);
  figures.bytes_per_s = static_cast<double>(options.large_bytes) / std::max(large_s - figures.latency_s, large_s / 2);
  return figures;
}

LinkFigures probe_threads(const ProbeOptions& options) {
  LocalHub hub(probe_topology());
  backend::Memory memory;
  const auto ours = hub.connect(0, memory), theirs = hub.connect(1, memory);
  std::thread peer([&] {
    try {
      probe_link(*theirs, options);
    } catch (const Aborted&) {
    }
  });
  LinkFigures figures;
  try {
    figures = probe_link(*ours, options);
  } catch (...) {
    hub.abort();
    peer.join();
    throw;
  }
  peer.join();
  return figures;
}

}  // namespace millrace::comm
