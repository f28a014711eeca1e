// cluster.yaml; its keys are described in clusters/README.md.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/job/small_file.h"
#include "millrace/job/text.h"
#include "millrace/job/yaml_tree.h"
#include "millrace/plan/cluster.h"
#include "millrace/plan/quantity.h"

namespace millrace::plan {
namespace {

using job::in_quotes;
using job::YamlTree;

constexpr int64_t kMostDevices = 65'536;
constexpr const char* kNodesExample = "nodes: [{devices: [{count: 8, kind: V100, memory: 16 GiB}]}]";
constexpr const char* kLinksExample = "links: [{name: nvlink, group: 8, bandwidth: 100 GB/s}]";

class ClusterReader {
 public:
  explicit ClusterReader(const std::string& file_name) : file_(file_name) {}

  Cluster read(const std::string& text) {
    const YamlTree tree = job::parse_yaml(text, file_, "cluster file", "name: my-cluster");
    check_keys(tree, "the file", {"name", "nodes", "links", "matrix"});
    cluster_.name = find(tree, "name") ? read_text(tree, "name") : std::filesystem::path(file_).stem().string();
    read_nodes(list(tree, "nodes", kNodesExample));
    const YamlTree::Entry* links = find(tree, "links");
    const YamlTree::Entry* matrix = find(tree, "matrix");
    if (links && matrix) fail(matrix->line, "links and matrix say the same twice; write one of them");
    if (matrix) {
      read_matrix(matrix->value);
    } else if (links) {
      read_levels(list(tree, "links", kLinksExample), links->line);
    } else if (cluster_.devices.size() > 1) {
      fail(tree.line, "the cluster has {} devices and nothing joins them; write e.g. {}", cluster_.devices.size(),
           kLinksExample);
    }
    return std::move(cluster_);
  }

 private:
  template <typename... Args>
  [[noreturn]] void fail(int line, fmt::format_string<Args...> format, Args&&... args) const {
    fail_input("{}:{}: {}", file_, line, fmt::format(format, std::forward<Args>(args)...));
  }

  void check_keys(const YamlTree& map, const char* what, const std::vector<std::string>& known) const {
    if (map.kind != YamlTree::Kind::Map) {
      fail(map.line, "{} is lines of \"key: value\" with the keys {}", what, fmt::join(known, ", "));
    }
    for (const YamlTree::Entry& entry : map.entries) {
      if (std::find(known.begin(), known.end(), entry.key) != known.end()) continue;
      const std::string near = job::nearest(entry.key, known);
      fail(entry.line, "unknown key {}; {}", in_quotes(entry.key),
           near.empty() ? fmt::format("{} has {}", what, fmt::join(known, ", "))
                        : fmt::format("did you mean {}?", near));
    }
  }

  static const YamlTree::Entry* find(const YamlTree& map, const char* key) {
    for (const YamlTree::Entry& entry : map.entries) {
      if (entry.key == key) return &entry;
    }
    return nullptr;
  }
  const YamlTree::Entry& at(const YamlTree& map, const char* key, const char* example) const {
    const YamlTree::Entry* entry = find(map, key);
    if (!entry) fail(map.line, "{} is missing; write e.g. {}", key, example);
    return *entry;
  }

  const std::vector<YamlTree>& list(const YamlTree& map, const char* key, const char* example) const {
    const YamlTree::Entry& entry = at(map, key, example);
    if (entry.value.kind != YamlTree::Kind::List || entry.value.items.empty()) {
      fail(entry.line, "{} is a list; write e.g. {}", key, example);
    }
    return entry.value.items;
  }

  std::string read_text(const YamlTree& map, const char* key) const {
    const YamlTree::Entry& entry = at(map, key, fmt::format("{}: a name", key).c_str());
    const bool fits = entry.value.kind == YamlTree::Kind::Text && !entry.value.text.empty() &&
                      std::none_of(entry.value.text.begin(), entry.value.text.end(),
                                   [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; });
    if (!fits) fail(entry.line, "{} is a name on one line; write e.g. {}: a name", key, key);
    return entry.value.text;
  }

  int64_t read_count(const YamlTree& map, const char* key, int64_t fallback) const {
    const YamlTree::Entry* entry = find(map, key);
    if (!entry) return fallback;
    int64_t count = 0;
    const bool number = entry->value.kind == YamlTree::Kind::Text &&
                        job::parse_number(entry->value.text, count) == job::NumberFault::Ok;
    if (!number || count < 1 || count > kMostDevices) {
      fail(entry->line, "{} {}: write a whole number from 1 to {}", key, in_quotes(entry->value.text), kMostDevices);
    }
    return count;
  }

  double read_quantity(const YamlTree& value, const char* key, int line, Quantity quantity) const {
    const auto number = value.kind == YamlTree::Kind::Text ? parse_quantity(value.text, quantity) : std::nullopt;
    if (!number) {
      fail(line, "{} {}: write a number and its unit, e.g. {}: {}", key, in_quotes(value.text), key,
           example_of(quantity));
    }
    return *number;
  }

  double read_bandwidth(const YamlTree& value, int line, const std::string& between) const {
    const double rate = read_quantity(value, "bandwidth", line, Quantity::Rate);
    if (rate <= 0) fail(line, "bandwidth {}: {} would not be connected", in_quotes(value.text), between);
    return rate;
  }

  void read_nodes(const std::vector<YamlTree>& nodes) {
    int number = 0;
    for (const YamlTree& node : nodes) {
      check_keys(node, "a node", {"count", "devices"});
      const int64_t count = read_count(node, "count", 1);
      std::vector<Device> devices;
      for (const YamlTree& device : list(node, "devices", "devices: [{count: 8, kind: V100, memory: 16 GiB}]")) {
        read_devices(device, devices);
      }
      const auto size = static_cast<int64_t>(devices.size());
      if (static_cast<int64_t>(cluster_.devices.size()) + count * size > kMostDevices) {
        fail(node.line, "the cluster has more than {} devices", kMostDevices);
      }
      for (int64_t i = 0; i < count; ++i, ++number) {
        for (Device& device : devices) {
          device.id.node = number;
          cluster_.devices.push_back(device);
        }
      }
    }
  }

  void read_devices(const YamlTree& map, std::vector<Device>& devices) const {
    check_keys(map, "a device", {"count", "kind", "memory", "speed"});
    Device device;
    device.kind = read_text(map, "kind");
    const YamlTree::Entry& memory = at(map, "memory", "memory: 12 GiB");
    const double bytes = read_quantity(memory.value, "memory", memory.line, Quantity::Bytes);
    if (bytes < 1 || bytes > 0x1p60)
      fail(memory.line, "memory {}: write e.g. memory: 12 GiB", in_quotes(memory.value.text));
    device.memory_bytes = static_cast<int64_t>(bytes);
    if (const YamlTree::Entry* speed = find(map, "speed")) {
      const bool number = speed->value.kind == YamlTree::Kind::Text &&
                          job::parse_number(speed->value.text, device.speed) == job::NumberFault::Ok;
      if (!number || !(device.speed > 0)) {
        fail(speed->line, "speed {}: write a number above 0, e.g. speed: 0.5 for half as fast",
             in_quotes(speed->value.text));
      }
    }
    const int64_t count = read_count(map, "count", 1);
    if (static_cast<int64_t>(devices.size()) + count > kMostDevices) {
      fail(map.line, "the node has more than {} devices", kMostDevices);
    }
    for (int64_t i = 0; i < count; ++i) {
      device.id.device = static_cast<int>(devices.size());
      devices.push_back(device);
    }
  }

  // Devices of each node; 0 where nodes differ.
  int64_t node_size() const {
    const auto size = static_cast<int64_t>(cluster_.devices.size()) / cluster_.num_nodes();
    for (size_t i = 0; i < cluster_.devices.size(); ++i) {
      if (cluster_.devices[i].id.node != static_cast<int>(static_cast<int64_t>(i) / size)) return 0;
    }
    return size;
  }

  bool read_flag(const YamlTree& map, const char* key) const {
    const YamlTree::Entry* flag = find(map, key);
    if (flag == nullptr) return false;
    if (flag->value.text != "true" && flag->value.text != "false") {
      fail(flag->line, "{} {}: write true or false", key, in_quotes(flag->value.text));
    }
    return flag->value.text == "true";
  }

  void read_levels(const std::vector<YamlTree>& levels, int line) {
    const int64_t per_node = node_size(), devices = static_cast<int64_t>(cluster_.devices.size());
    if (per_node == 0) fail(line, "links need nodes of as many devices each; write a matrix instead");
    int64_t joined = 1;
    std::vector<int64_t> sizes;
    for (const YamlTree& map : levels) {
      check_keys(map, "a link", {"name", "group", "bandwidth", "latency", "shared", "occupies"});
      Level level;
      level.name = find(map, "name") ? read_text(map, "name") : fmt::format("level {}", sizes.size());
      at(map, "group", "group: 8");
      level.group = static_cast<int>(read_count(map, "group", 1));
      const YamlTree::Entry& bandwidth = at(map, "bandwidth", "bandwidth: 12 GB/s");
      level.bytes_per_s = read_bandwidth(bandwidth.value, bandwidth.line, fmt::format("what {} joins", level.name));
      if (const YamlTree::Entry* latency = find(map, "latency")) {
        level.latency_s = read_quantity(latency->value, "latency", latency->line, Quantity::Time);
      }
      level.shared = read_flag(map, "shared");
      level.occupies = read_flag(map, "occupies");
      joined *= level.group;
      sizes.push_back(joined);
      if (joined > devices) {
        fail(map.line, "{}: groups of {} devices; nodes has {}", level.name, joined, devices);
      }
      cluster_.levels.push_back(level);
    }
    if (joined < devices) {
      fail(line, "links join groups of {} devices and the cluster has {}: nothing joins the groups{}", joined, devices,
           devices % joined == 0 ? fmt::format("; add a level with group: {}", devices / joined) : std::string());
    }
    if (per_node > 1 && std::find(sizes.begin(), sizes.end(), per_node) == sizes.end()) {
      fail(line, "links make groups of {} devices; one of them must be the {} of a node", fmt::join(sizes, ", "),
           per_node);
    }
  }

  const std::vector<YamlTree>& matrix_row(const YamlTree& row, const char* key) const {
    if (row.kind != YamlTree::Kind::List || row.items.size() != cluster_.devices.size()) {
      fail(row.line, "a row of {} has one figure for each of the {} devices, this has {}", key, cluster_.devices.size(),
           row.items.size());
    }
    return row.items;
  }
  template <typename Cell>
  void read_rows(const YamlTree::Entry& entry, Cell&& cell) const {
    const size_t size = cluster_.devices.size();
    if (entry.value.kind != YamlTree::Kind::List || entry.value.items.size() != size) {
      fail(entry.line, "{} has one row for each of the {} devices, this has {}", entry.key, size,
           entry.value.items.size());
    }
    for (size_t from = 0; from < size; ++from) {
      const auto& row = matrix_row(entry.value.items[from], entry.key.c_str());
      for (size_t to = 0; to < size; ++to) {
        if (from != to) cell(from, to, row[to]);
      }
    }
  }

  void read_matrix(const YamlTree& map) {
    check_keys(map, "matrix", {"bandwidth", "latency"});
    const size_t size = cluster_.devices.size();
    const YamlTree::Entry& bandwidth = at(map, "bandwidth", "bandwidth: [[0, 10 GB/s], [10 GB/s, 0]]");
    cluster_.matrix.resize(bandwidth.value.items.size() == size ? size * size : 0);
    read_rows(bandwidth, [&](size_t from, size_t to, const YamlTree& value) {
      cluster_.matrix[from * size + to].bytes_per_s =
          read_bandwidth(value, value.line, fmt::format("devices {} and {}", from, to));
    });
    if (const YamlTree::Entry* latency = find(map, "latency")) {
      if (latency->value.kind == YamlTree::Kind::Text) {
        const double all = read_quantity(latency->value, "latency", latency->line, Quantity::Time);
        for (size_t i = 0; i < size * size; ++i) cluster_.matrix[i].latency_s = i % (size + 1) == 0 ? 0 : all;
      } else {
        read_rows(*latency, [&](size_t from, size_t to, const YamlTree& value) {
          cluster_.matrix[from * size + to].latency_s = read_quantity(value, "latency", value.line, Quantity::Time);
        });
      }
    }
    derive_levels();
  }

  // A level within the node and one between nodes, each as slow as the slowest of its links.
  void derive_levels() {
    const size_t size = cluster_.devices.size();
    const auto worst = [&](const char* name, int64_t group, auto&& counts) {
      Level level{name, static_cast<int>(group), std::numeric_limits<double>::infinity(), 0, false};
      for (size_t i = 0; i < size * size; ++i) {
        const size_t from = i / size, to = i % size;
        if (from == to || !counts(cluster_.devices[from].id.node, cluster_.devices[to].id.node)) continue;
        level.bytes_per_s = std::min(level.bytes_per_s, cluster_.matrix[i].bytes_per_s);
        level.latency_s = std::max(level.latency_s, cluster_.matrix[i].latency_s);
      }
      if (group > 1) cluster_.levels.push_back(level);
    };
    const int64_t per_node = node_size(), nodes = cluster_.num_nodes();
    if (per_node == 0) return worst("all", static_cast<int64_t>(size), [](int, int) { return true; });
    worst("node", per_node, [](int a, int b) { return a == b; });
    worst("network", nodes, [](int a, int b) { return a != b; });
  }

  const std::string& file_;
  Cluster cluster_;
};

}  // namespace

Cluster parse_cluster(const std::string& yaml_text, const std::string& file_name) {
  return ClusterReader(file_name).read(yaml_text);
}

Cluster read_cluster(const std::string& path) {
  return parse_cluster(job::read_small_file(path, "cluster file"), path);
}

}  // namespace millrace::plan
