#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

#include "millrace/base/error.h"
#include "millrace/job/text.h"
#include "millrace/profile/profile.h"

namespace millrace::profile {
namespace {

struct Node {
  Operator op;
  int line = 0;
};

struct FileEdge {
  std::string from, to;
  int line = 0;
};

struct Place {
  const std::string& file;
  int line;

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    fail_input("{}:{}: {}", file, line, fmt::format(format, std::forward<Args>(args)...));
  }
};

std::vector<std::string_view> split(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.push_back(job::trimmed(text.substr(0, end)));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + separator.size());
  }
}

double parse_value(const Place& place, std::string_view key, std::string_view text) {
  double value = 0;
  if (job::parse_number(text, value) != job::NumberFault::Ok || value < 0 || value > 1e15) {
    place.fail("{} is {}; write a number from 0 to 1e15", key, job::in_quotes(text));
  }
  return value;
}

// "12.5", or "[8; 4.5]", which is their sum.
double parse_sum(const Place& place, std::string_view key, std::string_view text) {
  if (!text.starts_with('[')) return parse_value(place, key, text);
  if (!text.ends_with(']')) place.fail("{} is {}; a list ends with ]", key, job::in_quotes(text));
  double sum = 0;
  for (std::string_view part : split(text.substr(1, text.size() - 2), ";")) sum += parse_value(place, key, part);
  return sum;
}

// The value of `key` in "forward_compute_time=0.1, backward_compute_time=0.2, ...".
double field(const Place& place, const std::vector<std::string_view>& fields, std::string_view key) {
  for (std::string_view text : fields) {
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos && job::trimmed(text.substr(0, equals)) == key) {
      return parse_sum(place, key, job::trimmed(text.substr(equals + 1)));
    }
  }
  place.fail(
      "{} is missing; a node is <id> -- <layer> -- forward_compute_time=, backward_compute_time=, "
      "activation_size=, parameter_size=",
      key);
}

Operator parse_operator(const Place& place, const std::vector<std::string_view>& parts) {
  const auto fields = split(parts[2], ",");
  const double forward_ms = field(place, fields, "forward_compute_time");
  const double backward_ms = field(place, fields, "backward_compute_time");
  Operator op;
  op.name = parts[0];
  op.kind = job::trimmed(parts[1].substr(0, parts[1].find('(')));
  op.forward.median = forward_ms / 1e3;
  op.input_grad.median = op.weight_grad.median = backward_ms / 2e3;
  op.output_bytes = op.kept_bytes = static_cast<int64_t>(field(place, fields, "activation_size"));
  op.param_bytes = static_cast<int64_t>(field(place, fields, "parameter_size"));
  return op;
}

// "node9" before "node10": the order in which PipeDream met the layers.
bool natural_less(const std::string& a, const std::string& b) {
  return std::tuple(a.size(), std::string_view(a)) < std::tuple(b.size(), std::string_view(b));
}

struct Graph {
  std::vector<Node> nodes;  // in natural order of their ids
  std::vector<FileEdge> file_edges;
  std::vector<std::vector<int>> next, previous;  // per node
};

Graph read_lines(const std::string& text, const std::string& file) {
  Graph graph;
  std::map<std::string, int> line_of;
  int number = 0;
  for (std::string_view line : split(text, "\n")) {
    const Place place{file, ++number};
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const auto parts = split(line, " -- ");
    if (parts[0].empty()) place.fail("the id is empty");
    if (parts.size() == 2) {
      graph.file_edges.push_back({std::string(parts[0]), std::string(parts[1]), number});
    } else if (parts.size() == 3 || (parts.size() == 4 && parts[3].starts_with("stage_id="))) {
      const auto [known, is_new] = line_of.emplace(parts[0], number);
      if (!is_new) place.fail("node {} stands in line {} already", job::in_quotes(parts[0]), known->second);
      graph.nodes.push_back({parse_operator(place, parts), number});
    } else {
      place.fail("{} is neither a node (<id> -- <layer> -- <costs>) nor an edge (<id> -- <id>)", job::in_quotes(line));
    }
  }
  std::sort(graph.nodes.begin(), graph.nodes.end(),
            [](const Node& a, const Node& b) { return natural_less(a.op.name, b.op.name); });
  return graph;
}

void connect(Graph& graph, const std::string& file) {
  std::map<std::string, int> index;
  for (size_t i = 0; i < graph.nodes.size(); ++i) index[graph.nodes[i].op.name] = static_cast<int>(i);
  std::set<std::pair<int, int>> seen;
  graph.next.resize(graph.nodes.size());
  graph.previous.resize(graph.nodes.size());
  for (const FileEdge& edge : graph.file_edges) {
    for (const std::string& end : {edge.from, edge.to}) {
      if (!index.contains(end)) Place{file, edge.line}.fail("there is no node {}", job::in_quotes(end));
    }
    const int from = index[edge.from], to = index[edge.to];
    if (!seen.emplace(from, to).second) continue;
    graph.next[from].push_back(to);
    graph.previous[to].push_back(from);
  }
}

// Walks back among nodes that could not be ordered: each has a predecessor there, so a node comes up again.
[[noreturn]] void fail_cycle(const Graph& graph, const std::vector<bool>& ordered, const std::string& file) {
  int node = static_cast<int>(std::find(ordered.begin(), ordered.end(), false) - ordered.begin());
  std::vector<int> walk;
  for (auto again = walk.end(); again == walk.end(); again = std::find(walk.begin(), walk.end(), node)) {
    walk.push_back(node);
    for (int before : graph.previous[node]) {
      if (!ordered[before]) node = before;
    }
  }
  walk.erase(walk.begin(), std::find(walk.begin(), walk.end(), node));
  std::reverse(walk.begin(), walk.end());  // now in the direction of the edges, `node` last
  std::string names = graph.nodes[node].op.name;
  constexpr size_t kShown = 6;
  for (size_t i = 0; i < walk.size(); ++i) {
    if (walk.size() <= kShown || i + 2 < kShown || i + 1 == walk.size()) {
      names += " -> " + graph.nodes[walk[i]].op.name;
    } else if (i + 2 == kShown) {
      names += " -> ...";
    }
  }
  fail_input("{}:{}: a cycle: {}; what a layer reads must come before it", file, graph.nodes[node].line, names);
}

// Positions in the natural order such that every edge goes forward; the first that is ready comes first.
std::vector<int> topological_order(const Graph& graph, const std::string& file) {
  std::vector<size_t> waiting;
  std::set<int> ready;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    waiting.push_back(graph.previous[i].size());
    if (waiting[i] == 0) ready.insert(static_cast<int>(i));
  }
  std::vector<int> order;
  std::vector<bool> ordered(graph.nodes.size(), false);
  while (!ready.empty()) {
    const int node = *ready.begin();
    ready.erase(ready.begin());
    ordered[node] = true;
    order.push_back(node);
    for (int after : graph.next[node]) {
      if (--waiting[after] == 0) ready.insert(after);
    }
  }
  if (order.size() < graph.nodes.size()) fail_cycle(graph, ordered, file);
  return order;
}

// Where data enters: its time is the loader's, and what it makes needs no stage.
bool is_input(const Graph& graph, int node) {
  return graph.previous[node].empty() && graph.nodes[node].op.kind.starts_with("Input");
}

}  // namespace

Profile parse_pipedream_graph(const std::string& text, const std::string& file_name) {
  Graph graph = read_lines(text, file_name);
  connect(graph, file_name);
  Profile profile;
  const std::string name = std::filesystem::path(file_name).filename().string();
  profile.model = name.substr(0, name.find('.'));
  std::vector<int> position(graph.nodes.size(), -1);
  for (int node : topological_order(graph, file_name)) {
    if (is_input(graph, node)) continue;
    position[node] = static_cast<int>(profile.operators.size());
    profile.operators.push_back(graph.nodes[node].op);
  }
  if (profile.operators.empty()) {
    fail_input("{}: no layer in it; write lines <id> -- <layer> -- forward_compute_time=, ...", file_name);
  }
  for (size_t from = 0; from < graph.nodes.size(); ++from) {
    if (position[from] < 0) continue;
    for (int to : graph.next[from]) profile.edges.push_back({position[from], position[to]});
  }
  std::sort(profile.edges.begin(), profile.edges.end(),
            [](const Edge& a, const Edge& b) { return std::tuple(a.from, a.to) < std::tuple(b.from, b.to); });
  return profile;
}

}  // namespace millrace::profile
