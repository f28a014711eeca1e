#include "cli/detect.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "millrace/comm/link_probe.h"
#include "millrace/report/process_memory.h"
#include "millrace/runtime/device.h"

namespace millrace::cli {

using plan::Cluster;

namespace {

// A measurement is not more exact than three digits.
double rounded(double value) { return value > 0 ? std::stod(fmt::format("{:.3g}", value)) : value; }

plan::Level measured_level(const char* name, int group, const comm::LinkFigures& figures, bool shared) {
  // Cores copy and add themselves, whatever the transport.
  return {name, group, rounded(figures.bytes_per_s), rounded(figures.latency_s), shared, true};
}

// Devices share a node's memory evenly.
void add_node(Cluster& cluster, int devices) {
  constexpr int64_t kMiB = 1 << 20;
  const int node = cluster.num_nodes();
  const int64_t memory = std::max(kMiB, report::available_memory() / devices / kMiB * kMiB);
  for (int i = 0; i < devices; ++i) {
    cluster.devices.push_back({{node, i}, runtime::processor_name(), memory, 1});
  }
}

}  // namespace

Cluster detect_threads() {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  Cluster cluster;
  cluster.name = "local";
  add_node(cluster, cores);
  if (cores > 1) cluster.levels.push_back(measured_level("memory", cores, comm::probe_threads({}), true));
  return cluster;
}

Cluster detect_processes(comm::Process& process) {
  process.open(comm::probe_topology());
  const auto endpoint = process.connect(process.rank());
  const comm::LinkFigures figures = comm::probe_link(*endpoint, {});
  const bool one_host = process.size_on_host() == 2;
  Cluster cluster;
  cluster.name = one_host ? "local-mpi" : "two-hosts";
  for (int node = 0; node < (one_host ? 1 : 2); ++node) add_node(cluster, one_host ? 2 : 1);
  cluster.levels.push_back(measured_level(one_host ? "mpi, one host" : "mpi, network", 2, figures, false));
  return cluster;
}

}  // namespace millrace::cli
