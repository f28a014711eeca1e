// A cluster as data: devices, and what a byte takes between any two of them. Read from cluster.yaml (clusters/ has
// some), or measured here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/job/placement.h"

namespace millrace::plan {

struct Device {
  job::DeviceId id;
  std::string kind;
  int64_t memory_bytes = 0;
  double speed = 1;  // relative to the device that was profiled
  bool operator==(const Device&) const = default;
};

// Devices below it share the link: to one another through it, and out of the group through the next level's.
struct Level {
  std::string name;        // "pcie switch", "socket", "node", "network"
  int group = 1;           // members (devices or groups of the level below) that one of its groups has
  double bytes_per_s = 0;  // in each direction, of one member's link into the group
  double latency_s = 0;
  bool shared = false;    // one link for all members of a group instead of one each
  bool occupies = false;  // devices move the bytes of a sum themselves: it does not hide behind computing
  bool operator==(const Level&) const = default;
};

struct Link {
  double bytes_per_s = 0;
  double latency_s = 0;
  bool operator==(const Link&) const = default;
};

struct Cluster {
  std::string name;
  std::vector<Device> devices;  // in order of node and device
  // Innermost first; the product of their groups is the number of devices, and one of them ends at the node where there
  // are several. None for a single device. Where links are given as a matrix these are the narrowest link and the
  // longest latency within a node and between nodes.
  std::vector<Level> levels;
  std::vector<Link> matrix;  // row by row from each device to each; empty: the levels say it
  bool operator==(const Cluster&) const = default;

  int num_nodes() const { return devices.empty() ? 0 : devices.back().id.node + 1; }
  // The outermost level that a message between two devices passes: 0 is the innermost. -1 on one device.
  int level_between(int a, int b) const;
  // The narrowest bandwidth and the whole latency on the way. On one device infinite and 0.
  double bytes_per_s(int a, int b) const;
  double latency_s(int a, int b) const;
};

// What summing a byte over devices takes, and what every sum takes besides: a ring over all of them.
struct SumCost {
  double per_byte = 0;
  double latency_s = 0;
  bool occupies = false;  // the devices
};
SumCost sum_cost(const Cluster& cluster, const std::vector<int>& devices);

// Every mistake is one std::invalid_argument line that names the file and line.
Cluster read_cluster(const std::string& path);
Cluster parse_cluster(const std::string& yaml_text, const std::string& file_name);
std::string to_yaml(const Cluster& cluster);

}  // namespace millrace::plan
