#include "millrace/plan/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "millrace/plan/quantity.h"

namespace millrace::plan {
namespace {

// Names may hold what YAML would take for its own.
std::string in_yaml_quotes(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

// How often what stands at `begin` follows itself.
template <typename Same>
size_t run_length(size_t begin, size_t end, Same&& same) {
  size_t at = begin + 1;
  while (at < end && same(begin, at)) ++at;
  return at - begin;
}

std::string nodes_to_yaml(const std::vector<Device>& devices) {
  std::vector<size_t> first;  // device of each node, and the end
  for (size_t i = 0; i < devices.size(); ++i) {
    if (i == 0 || devices[i].id.node != devices[i - 1].id.node) first.push_back(i);
  }
  const size_t num_nodes = first.size();
  first.push_back(devices.size());
  const auto same_kind = [&](size_t a, size_t b) {
    return devices[a].kind == devices[b].kind && devices[a].memory_bytes == devices[b].memory_bytes &&
           devices[a].speed == devices[b].speed;
  };
  const auto same_node = [&](size_t a, size_t b) {
    const size_t size = first[a + 1] - first[a];
    if (first[b + 1] - first[b] != size) return false;
    for (size_t i = 0; i < size; ++i) {
      if (!same_kind(first[a] + i, first[b] + i)) return false;
    }
    return true;
  };
  std::string out = "nodes:\n";
  for (size_t node = 0; node < num_nodes;) {
    const size_t alike = run_length(node, num_nodes, same_node);
    out += fmt::format("  - count: {}\n    devices:\n", alike);
    for (size_t i = first[node]; i < first[node + 1];) {
      const size_t count = run_length(i, first[node + 1], same_kind);
      out += fmt::format("      - count: {}\n        kind: {}\n        memory: {}\n        speed: {}\n", count,
                         in_yaml_quotes(devices[i].kind),
                         to_text(static_cast<double>(devices[i].memory_bytes), Quantity::Bytes), devices[i].speed);
      i += count;
    }
    node += alike;
  }
  return out;
}

template <typename Cell>
std::string rows_to_yaml(const char* key, size_t size, Cell&& cell) {
  std::string out = fmt::format("  {}:\n", key);
  for (size_t from = 0; from < size; ++from) {
    out += "    - [";
    for (size_t to = 0; to < size; ++to) out += (to > 0 ? ", " : "") + (from == to ? std::string("0") : cell(from, to));
    out += "]\n";
  }
  return out;
}

}  // namespace

int Cluster::level_between(int a, int b) const {
  if (a == b) return -1;
  int64_t size = 1;
  for (size_t level = 0; level < levels.size(); ++level) {
    size *= levels[level].group;
    if (a / size == b / size) return static_cast<int>(level);
  }
  return static_cast<int>(levels.size()) - 1;
}

double Cluster::bytes_per_s(int a, int b) const {
  double narrowest = std::numeric_limits<double>::infinity();
  if (a == b) return narrowest;
  if (!matrix.empty()) return matrix[static_cast<size_t>(a) * devices.size() + static_cast<size_t>(b)].bytes_per_s;
  for (int level = level_between(a, b); level >= 0; --level) {
    narrowest = std::min(narrowest, levels[static_cast<size_t>(level)].bytes_per_s);
  }
  return narrowest;
}

double Cluster::latency_s(int a, int b) const {
  if (a == b) return 0;
  if (!matrix.empty()) return matrix[static_cast<size_t>(a) * devices.size() + static_cast<size_t>(b)].latency_s;
  double sum = 0;
  for (int level = level_between(a, b); level >= 0; --level) sum += levels[static_cast<size_t>(level)].latency_s;
  return sum;
}

SumCost sum_cost(const Cluster& cluster, const std::vector<int>& devices) {
  SumCost cost;
  const auto replicas = static_cast<double>(devices.size());
  if (devices.size() < 2) return cost;
  int span = 0;
  for (int device : devices) span = std::max(span, cluster.level_between(devices[0], device));
  const double rounds = 2 * (replicas - 1);
  int64_t member = 1;  // devices of one member of the level
  for (int l = 0; l <= span; ++l) {
    const Level& level = cluster.levels[static_cast<size_t>(l)];
    const int64_t group = member * level.group;
    if (level.group > 1) {
      // Members of the fullest group that would speak at once through one link.
      std::map<int64_t, std::set<int64_t>> speaking;
      for (int device : devices) speaking[device / group].insert(device / member);
      size_t sharing = 1;
      for (const auto& [of, members] : speaking) {
        if (level.shared) sharing = std::max(sharing, members.size());
      }
      cost.per_byte = std::max(cost.per_byte, rounds / replicas * static_cast<double>(sharing) / level.bytes_per_s);
      cost.latency_s = std::max(cost.latency_s, rounds * level.latency_s);
      cost.occupies |= level.occupies;
    }
    member = group;
  }
  return cost;
}

std::string to_yaml(const Cluster& cluster) {
  std::string out = fmt::format("name: {}\n{}", in_yaml_quotes(cluster.name), nodes_to_yaml(cluster.devices));
  const size_t size = cluster.devices.size();
  if (!cluster.matrix.empty()) {
    const auto link = [&](size_t from, size_t to) { return cluster.matrix[from * size + to]; };
    out += "matrix:\n";
    out += rows_to_yaml("bandwidth", size,
                        [&](size_t from, size_t to) { return to_text(link(from, to).bytes_per_s, Quantity::Rate); });
    out += rows_to_yaml("latency", size,
                        [&](size_t from, size_t to) { return to_text(link(from, to).latency_s, Quantity::Time); });
    return out;
  }
  if (cluster.levels.empty()) return out;
  out += "links:\n";
  for (const Level& level : cluster.levels) {
    out += fmt::format(
        "  - name: {}\n    group: {}\n    bandwidth: {}\n    latency: {}\n    shared: {}\n    occupies: {}\n",
        in_yaml_quotes(level.name), level.group, to_text(level.bytes_per_s, Quantity::Rate),
        to_text(level.latency_s, Quantity::Time), level.shared, level.occupies);
  }
  return out;
}

}  // namespace millrace::plan
