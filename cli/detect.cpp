#include "cli/detect.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "millrace/backend/cuda/cuda_backend.h"
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

// Copies between two GPUs, there and back.
comm::LinkFigures probe_gpus() {
  constexpr size_t kSmall = 4, kLarge = size_t{64} << 20;
  constexpr int kRepeats = 20;
  const auto one = backend::make_cuda_backend({.device = 0}, {});
  void* from = one->allocate(kLarge);
  const auto other = backend::make_cuda_backend({.device = 1}, {});
  void* to = other->allocate(kLarge);
  auto seconds = [&](size_t bytes) {
    other->copy(to, from, bytes);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kRepeats; ++i) other->copy(to, from, bytes);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / kRepeats;
  };
  const double latency_s = seconds(kSmall);
  const double bytes_per_s = static_cast<double>(kLarge) / std::max(seconds(kLarge) - latency_s, 1e-9);
  other->release(to, kLarge);
  one->release(from, kLarge);
  return {.bytes_per_s = bytes_per_s, .latency_s = latency_s};
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

Cluster detect_gpus() {
  const int gpus = backend::cuda_device_count();
  Cluster cluster;
  cluster.name = "local";
  for (int i = 0; i < std::max(1, gpus); ++i) {
    const auto memory = static_cast<int64_t>(backend::cuda_memory(i).free_bytes);
    cluster.devices.push_back({{0, i}, backend::cuda_device_name(i), memory, 1});
  }
  if (gpus > 1) {
    const comm::LinkFigures figures = probe_gpus();
    cluster.levels.push_back({"between GPUs", gpus, rounded(figures.bytes_per_s), rounded(figures.latency_s), false});
  }
  return cluster;
}

Cluster detect_processes(comm::Process& process) {
  process.open(comm::probe_topology());
  backend::Memory memory;
  const auto endpoint = process.connect(process.rank(), memory);
  const comm::LinkFigures figures = comm::probe_link(*endpoint, {});
  const bool one_host = process.size_on_host() == 2;
  Cluster cluster;
  cluster.name = one_host ? "local-mpi" : "two-hosts";
  for (int node = 0; node < (one_host ? 1 : 2); ++node) add_node(cluster, one_host ? 2 : 1);
  cluster.levels.push_back(measured_level(one_host ? "mpi, one host" : "mpi, network", 2, figures, false));
  return cluster;
}

}  // namespace millrace::cli
