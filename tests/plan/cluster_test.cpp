#include "millrace/plan/cluster.h"

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>

namespace millrace::plan {
namespace {

using testing::HasSubstr;

const std::string kNodes =
    "nodes:\n  - count: 2\n    devices:\n      - {count: 4, kind: gpu, memory: 8 GiB}\n";  // 4 lines
const std::string kTree =
    kNodes +
    "links:\n"
    "  - {name: switch, group: 2, bandwidth: 12 GB/s, latency: 1 us}\n"
    "  - {name: node, group: 2, bandwidth: 20 GB/s, latency: 2 us, shared: true, occupies: true}\n"
    "  - {name: network, group: 2, bandwidth: 8 Gb/s, latency: 10 us}\n";

TEST(Cluster, DevicesAreNumberedByNode) {
  const Cluster cluster = parse_cluster(kTree, "some/tree.yaml");
  EXPECT_EQ(cluster.name, "tree");
  ASSERT_EQ(cluster.devices.size(), 8u);
  EXPECT_EQ(cluster.devices[5].id, (job::DeviceId{1, 1}));
  EXPECT_EQ(cluster.devices[5].kind, "gpu");
  EXPECT_EQ(cluster.devices[5].memory_bytes, int64_t{8} << 30);
  EXPECT_EQ(cluster.devices[5].speed, 1);
  EXPECT_EQ(cluster.num_nodes(), 2);
  EXPECT_TRUE(cluster.levels[1].shared);
  EXPECT_TRUE(cluster.levels[1].occupies);
  EXPECT_FALSE(cluster.levels[0].occupies);
}

TEST(Cluster, AMessageIsAsFastAsTheNarrowestLevelItPasses) {
  const Cluster cluster = parse_cluster(kTree, "tree.yaml");
  EXPECT_EQ(cluster.level_between(0, 1), 0);
  EXPECT_EQ(cluster.level_between(1, 2), 1);
  EXPECT_EQ(cluster.level_between(3, 4), 2);
  EXPECT_EQ(cluster.level_between(6, 6), -1);
  EXPECT_EQ(cluster.bytes_per_s(0, 1), 12e9);
  EXPECT_EQ(cluster.bytes_per_s(1, 2), 12e9);
  EXPECT_EQ(cluster.bytes_per_s(0, 7), 1e9);
  EXPECT_TRUE(std::isinf(cluster.bytes_per_s(2, 2)));
  EXPECT_DOUBLE_EQ(cluster.latency_s(0, 1), 1e-6);
  EXPECT_DOUBLE_EQ(cluster.latency_s(0, 3), 3e-6);
  EXPECT_DOUBLE_EQ(cluster.latency_s(0, 7), 13e-6);
  EXPECT_EQ(cluster.latency_s(2, 2), 0);
}

TEST(Cluster, AMatrixSaysEveryPairAndGivesLevels) {
  const Cluster cluster = parse_cluster(
      "nodes:\n  - devices: [{count: 2, kind: a, memory: 1 GiB}]\n  - devices: [{kind: b, memory: 2 GiB, speed: 0.5}]\n"
      "matrix:\n  bandwidth:\n    - [0, 10 GB/s, 1 GB/s]\n    - [9 GB/s, 0, 2 GB/s]\n    - [3 GB/s, 4 GB/s, 0]\n"
      "  latency: 5 us\n",
      "m.yaml");
  EXPECT_EQ(cluster.bytes_per_s(0, 1), 10e9);
  EXPECT_EQ(cluster.bytes_per_s(1, 0), 9e9);
  EXPECT_EQ(cluster.bytes_per_s(2, 1), 4e9);
  EXPECT_DOUBLE_EQ(cluster.latency_s(0, 2), 5e-6);
  EXPECT_EQ(cluster.latency_s(1, 1), 0);
  ASSERT_EQ(cluster.levels.size(), 1u);  // nodes differ
  EXPECT_EQ(cluster.levels[0].group, 3);
  EXPECT_EQ(cluster.levels[0].bytes_per_s, 1e9);
  EXPECT_EQ(parse_cluster(to_yaml(cluster), "m.yaml"), cluster);

  const Cluster even = parse_cluster(
      "nodes: [{count: 2, devices: [{kind: a, memory: 1 GiB}]}]\nmatrix: {bandwidth: [[0, 1 GB/s], [2 GB/s, 0]]}\n",
      "e");
  ASSERT_EQ(even.levels.size(), 1u);
  EXPECT_EQ(even.levels[0].name, "network");
  EXPECT_EQ(even.levels[0].bytes_per_s, 1e9);
}

TEST(Cluster, OneDeviceNeedsNoLinks) {
  const Cluster cluster = parse_cluster("nodes: [{devices: [{kind: a, memory: 1 GiB}]}]", "one.yaml");
  EXPECT_EQ(cluster.devices.size(), 1u);
  EXPECT_TRUE(cluster.levels.empty());
  EXPECT_EQ(parse_cluster(to_yaml(cluster), "x"), cluster);
}

TEST(Cluster, YamlRoundTripIsExact) {
  Cluster cluster = parse_cluster(kTree, "tree.yaml");
  cluster.name = "a \"quoted\": name # not a comment";
  cluster.devices[1].kind = "other";
  cluster.devices[6].speed = 1.0 / 3;
  cluster.devices[7].memory_bytes = 12345678901;
  cluster.levels[0].bytes_per_s = 1e10 / 3;
  cluster.levels[1].latency_s = 1e-5 / 7;
  EXPECT_EQ(parse_cluster(to_yaml(cluster), "x.yaml"), cluster) << to_yaml(cluster);
}

std::string refused(const std::string& text) {
  try {
    parse_cluster(text, "c.yaml");
  } catch (const std::invalid_argument& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "accepted";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST(Cluster, DisconnectedClustersAreRefused) {
  EXPECT_THAT(refused(kNodes), HasSubstr("8 devices and nothing joins them"));
  EXPECT_THAT(refused(replaced(kTree, "8 Gb/s", "0 Gb/s")),
              HasSubstr("c.yaml:8: bandwidth \"0 Gb/s\": what network joins"));
  EXPECT_THAT(
      refused(kNodes + "links:\n  - {group: 4, bandwidth: 1 GB/s}\n"),
      HasSubstr("c.yaml:5: links join groups of 4 devices and the cluster has 8: nothing joins the groups; add a "
                "level with group: 2"));
  EXPECT_THAT(refused("nodes: [{count: 2, devices: [{kind: a, memory: 1 GiB}]}]\n"
                      "matrix:\n  bandwidth:\n    - [0, 1 GB/s]\n    - [0, 0]\n"),
              HasSubstr("c.yaml:5: bandwidth \"0\": devices 1 and 0 would not be connected"));
}

TEST(Cluster, MistakesAreNamedWithTheirLine) {
  EXPECT_THAT(refused(""), HasSubstr("c.yaml: the file is empty"));
  EXPECT_THAT(refused("- 1\n"), HasSubstr("keys name, nodes, links, matrix"));
  EXPECT_THAT(refused("nodes: [\n"), HasSubstr("not valid YAML"));
  EXPECT_THAT(refused("name: x\n"), HasSubstr("nodes is missing"));
  EXPECT_THAT(refused("name: x\nnode: 3\n"), HasSubstr("c.yaml:2: unknown key \"node\"; did you mean nodes?"));
  EXPECT_THAT(refused("name: x\nnodes: 3\n"), HasSubstr("c.yaml:2: nodes is a list"));
  EXPECT_THAT(refused("nodes: []\n"), HasSubstr("nodes is a list"));
  EXPECT_THAT(refused(replaced(kTree, "memory", "memry")),
              HasSubstr("c.yaml:4: unknown key \"memry\"; did you mean memory?"));
  EXPECT_THAT(refused(replaced(kTree, "8 GiB", "8")), HasSubstr("memory \"8\": write a number and its unit"));
  EXPECT_THAT(refused(replaced(kTree, "8 GiB", "-8 GiB")), HasSubstr("memory \"-8 GiB\""));
  EXPECT_THAT(refused(replaced(kTree, "count: 2", "count: 0")),
              HasSubstr("c.yaml:2: count \"0\": write a whole number"));
  EXPECT_THAT(refused(replaced(kTree, "count: 4", "count: 99999999999999999999")), HasSubstr("write a whole number"));
  EXPECT_THAT(refused(replaced(kTree, "count: 2", "count: 65536")), HasSubstr("more than 65536 devices"));
  EXPECT_THAT(refused(replaced(kTree, "gpu,", "gpu, speed: 0,")), HasSubstr("speed \"0\""));
  EXPECT_THAT(refused(replaced(kTree, "12 GB/s", "12 GB")), HasSubstr("c.yaml:6: bandwidth \"12 GB\""));
  EXPECT_THAT(refused(replaced(kTree, "10 us", "[1]")), HasSubstr("c.yaml:8: latency"));
  EXPECT_THAT(refused(replaced(kTree, "shared: true", "shared: maybe")), HasSubstr("c.yaml:7: shared \"maybe\""));
  EXPECT_THAT(refused(replaced(kTree, "occupies: true", "occupies: 2")), HasSubstr("c.yaml:7: occupies \"2\": write"));
  EXPECT_THAT(refused(replaced(kTree, "network, group: 2", "network, group: 3")), HasSubstr("groups of 12 devices"));
  EXPECT_THAT(refused(replaced(kTree, "network, group: 2", "network")), HasSubstr("group is missing"));
  EXPECT_THAT(refused(kNodes + "links: [{group: 8, bandwidth: 1 GB/s}]\n"),
              HasSubstr("one of them must be the 4 of a node"));
  EXPECT_THAT(refused(kTree + "matrix: {}\n"), HasSubstr("c.yaml:9: links and matrix"));
  EXPECT_THAT(refused(kNodes + "matrix: {bandwidth: [[0]]}\n"),
              HasSubstr("one row for each of the 8 devices, this has 1"));
  EXPECT_THAT(refused(kTree + "name: a\nname: b\n"), HasSubstr("c.yaml:10: \"name\" is given twice, first on line 9"));
  EXPECT_THAT(refused("nodes: &a [*a]\n"), HasSubstr("c.yaml"));
}

TEST(Cluster, ShippedFilesAreWhatTheirNamesSay) {
  const std::filesystem::path folder = std::filesystem::path(MILLRACE_SOURCE_DIR) / "clusters";
  const auto read = [&](const char* name) { return read_cluster(folder / (std::string(name) + ".yaml")); };
  const std::vector<std::pair<const char*, std::pair<int, size_t>>> expected{
      {"titan-v-8x1", {1, 8}}, {"titan-v-8x2", {2, 16}}, {"v100-8x1", {1, 8}},     {"v100-8x2", {2, 16}},
      {"v100-8x4", {4, 32}},   {"h200-8x1", {1, 8}},     {"two-hosts-1g", {2, 2}},
  };
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files += entry.path().extension() == ".yaml";
  EXPECT_EQ(files, expected.size());
  for (const auto& [name, size] : expected) {
    const Cluster cluster = read(name);
    EXPECT_EQ(cluster.name, name);
    EXPECT_EQ(cluster.num_nodes(), size.first) << name;
    EXPECT_EQ(cluster.devices.size(), size.second) << name;
    EXPECT_EQ(parse_cluster(to_yaml(cluster), name), cluster);
  }
  EXPECT_EQ(read("two-hosts-1g").bytes_per_s(0, 1), 125e6);
  EXPECT_EQ(read("v100-8x4").bytes_per_s(0, 31), 12.5e9);
}

}  // namespace
}  // namespace millrace::plan
