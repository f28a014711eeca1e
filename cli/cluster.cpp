// millrace cluster: this machine as a cluster, measured, and any cluster file as tables.
#include "millrace/plan/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/detect.h"
#include "cli/together.h"
#include "millrace/base/error.h"
#include "millrace/report/run_directory.h"
#include "millrace/report/table.h"
#include "millrace/report/units.h"

namespace millrace::cli {
namespace {

using plan::Cluster;

constexpr size_t kWidestMatrix = 16;  // devices

std::string human_rate(double bytes_per_s) {
  for (const auto& [name, scale] : {std::pair{"GB/s", 1e9}, {"MB/s", 1e6}, {"kB/s", 1e3}}) {
    if (bytes_per_s >= scale) return fmt::format("{} {}", report::human_number(bytes_per_s / scale), name);
  }
  return fmt::format("{} B/s", report::human_number(bytes_per_s));
}

std::string human_latency(double seconds) {
  return seconds < 1e-3 ? report::human_number(seconds * 1e6) + " us" : report::human_duration(seconds);
}

std::string device_label(const plan::Device& device) { return fmt::format("{}:{}", device.id.node, device.id.device); }

// "0:0-7": devices of one node.
std::string range_label(const plan::Device& first, const plan::Device& last) {
  return first.id == last.id ? device_label(first) : fmt::format("{}-{}", device_label(first), last.id.device);
}

void print_devices(const Cluster& cluster) {
  report::Table table({"devices", "kind", "memory", "speed"});
  const auto& devices = cluster.devices;
  for (size_t begin = 0; begin < devices.size();) {
    size_t end = begin;
    plan::Device like = devices[begin];
    for (; end < devices.size(); ++end) {
      like.id = devices[end].id;
      if (devices[end].id.node != devices[begin].id.node || !(devices[end] == like)) break;
    }
    table.add({range_label(devices[begin], devices[end - 1]), like.kind, report::human_bytes(like.memory_bytes),
               fmt::format("{}", like.speed)});
    begin = end;
  }
  fmt::print("{}\n", table.str());
}

void print_levels(const Cluster& cluster) {
  report::Table table({"level", "name", "joins", "devices", "bandwidth", "latency", "link"});
  int64_t size = 1;
  for (size_t i = 0; i < cluster.levels.size(); ++i) {
    const plan::Level& level = cluster.levels[i];
    size *= level.group;
    table.add({fmt::format("{}", i), level.name, fmt::format("{}", level.group), fmt::format("{}", size),
               human_rate(level.bytes_per_s), human_latency(level.latency_s),
               fmt::format("{}{}", level.shared ? "shared" : "one each", level.occupies ? ", occupies" : "")});
  }
  fmt::print("{}\n", table.str());
}

// Devices whose rows are shown: all, or of a large cluster the first of each node.
std::vector<int> shown_devices(const Cluster& cluster) {
  std::vector<int> shown;
  const bool all = cluster.devices.size() <= kWidestMatrix;
  for (size_t i = 0; i < cluster.devices.size(); ++i) {
    if (all || (cluster.devices[i].id.device == 0 && shown.size() < kWidestMatrix))
      shown.push_back(static_cast<int>(i));
  }
  return shown;
}

void print_matrix(const Cluster& cluster) {
  const std::vector<int> shown = shown_devices(cluster);
  std::vector<std::string> header{"GB/s"};
  for (int to : shown) header.push_back(device_label(cluster.devices[to]));
  report::Table table(header);
  for (int from : shown) {
    std::vector<std::string> row{device_label(cluster.devices[from])};
    for (int to : shown) {
      row.push_back(from == to ? "-" : report::human_number(cluster.bytes_per_s(from, to) * 1e-9));
    }
    table.add(row);
  }
  fmt::print("{}", table.str());
  if (shown.size() < cluster.devices.size()) {
    fmt::print("{} of {} devices are shown: the first of each node\n", shown.size(), cluster.devices.size());
  }
}

void print_cluster(const Cluster& cluster) {
  fmt::print("{}: {}, {}\n\n", cluster.name, report::counted(cluster.num_nodes(), "node"),
             report::counted(static_cast<int64_t>(cluster.devices.size()), "device"));
  print_devices(cluster);
  if (cluster.devices.size() == 1) return;
  print_levels(cluster);
  print_matrix(cluster);
}

void detect(const std::string& out, bool gpus) {
  std::unique_ptr<comm::Process> process = comm::make_process();
  together(process, [&] {
    if (process->size() > 2) {
      fail_input("cluster detect measures between two processes, {} were started; write mpirun -n 2", process->size());
    }
    if (gpus && process->size() > 1) fail_input("cluster detect --gpus measures those of one process; start one");
    if (process->rank() == 0 && !out.empty()) report::check_file(out, "--out");
  });
  const Cluster cluster = gpus ? detect_gpus() : process->size() == 1 ? detect_threads() : detect_processes(*process);
  if (process->rank() != 0) return;
  print_cluster(cluster);
  if (out.empty()) return;
  report::write_file(out, plan::to_yaml(cluster));
  fmt::print("\nwritten: {}\n", out);
}

void declare_detect(CLI::App& group, Action& action) {
  auto out = std::make_shared<std::string>();
  auto gpus = std::make_shared<bool>(false);
  CLI::App* command = group.add_subcommand("detect", "Measure this machine as a cluster of CPU workers or GPUs");
  command->add_flag("--gpus", *gpus, "Its GPUs instead of its cores");
  command->add_option("-o,--out", *out, "Write the cluster here (YAML)")
      ->type_name("FILE")
      ->check(not_empty("local.yaml"));
  command->footer(
      "Alone, a device is a core, and copies between two threads are measured. Under mpirun -n 2 a device is a\n"
      "process, and messages between the two are measured, on one host or on two.");
  command->callback([out, gpus, &action] { action = [out, gpus] { detect(*out, *gpus); }; });
}

void declare_show(CLI::App& group, Action& action) {
  auto path = std::make_shared<std::string>();
  CLI::App* command = group.add_subcommand("show", "Print a cluster's devices, levels and bandwidths");
  command->add_option("FILE", *path, "The cluster (YAML), e.g. clusters/v100-8x2.yaml")->required()->type_name("FILE");
  command->callback([path, &action] { action = [path] { print_cluster(plan::read_cluster(*path)); }; });
}

}  // namespace

void declare_cluster(CLI::App& app, Action& action) {
  CLI::App* group = app.add_subcommand("cluster", "Measure this machine, or show a cluster file");
  group->require_subcommand(1);
  declare_detect(*group, action);
  declare_show(*group, action);
}

}  // namespace millrace::cli
