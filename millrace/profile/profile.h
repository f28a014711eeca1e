// What a model's operators cost on one device: the input of the planner. Measured by `millrace profile`, or read from
// PipeDream's graph.txt. Plain data.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace millrace::profile {

// Seconds of one pass: the median of several runs, and how far the middle half of them lies apart.
struct Seconds {
  double median = 0;
  double spread = 0;
  bool operator==(const Seconds&) const = default;
};

struct Operator {
  std::string name;
  std::string kind;
  Seconds forward, input_grad, weight_grad, update;
  int64_t output_bytes = 0;                  // of the value it makes, as it would be sent
  int64_t kept_bytes = 0;                    // what forward leaves for backward, its output included if it is kept
  int64_t param_bytes = 0;                   // trainable, as their gradients are summed over replicas
  std::array<int64_t, 3> workspace_bytes{};  // of forward, input and weight gradient
  std::string algorithm;                     // of forward, input and weight gradient: "winograd direct direct"
  double seconds() const { return forward.median + input_grad.median + weight_grad.median + update.median; }
  int64_t most_workspace() const { return *std::max_element(workspace_bytes.begin(), workspace_bytes.end()); }
  bool operator==(const Operator&) const = default;
};

// The output of operator `from` is read by operator `to`; both count in topological order, from < to.
struct Edge {
  int from = 0;
  int to = 0;
  bool operator==(const Edge&) const = default;
};

struct Profile {
  std::string model;
  std::string device;       // what it was measured on
  int64_t rows = 0;         // samples of the micro-batch that was measured
  int value_bytes = 4;      // of one number of an activation
  int64_t input_bytes = 0;  // of the features of a micro-batch, as the device keeps them
  std::vector<Operator> operators;
  std::vector<Edge> edges;
  std::vector<Edge> ties;  // operators that whoever wrote the profile wants on one stage, from < to
  double step_s = 0;       // a whole step of one micro-batch, measured without instruments; 0: unknown
  bool operator==(const Profile&) const = default;
};

// For a micro-batch of any size. Times and workspace lie on lines between the sizes that were measured, in proportion
// to the rows where there is one; values are proportional to the rows. Refuses profiles of different models.
Profile at_rows(const std::vector<Profile>& measured, int64_t rows);

// profile.json
std::string to_json(const Profile& profile);
Profile parse_profile(const std::string& text, const std::string& file_name);

// PipeDream's graph.txt. Compute times are milliseconds of forward and of backward, which is taken as half input and
// half weight gradient; operators are put in topological order, named by their ids. Inputs are left out: their time is
// the data loader's. Every mistake is one std::invalid_argument line with file and line: a cycle, a missing node,
// an empty file.
Profile parse_pipedream_graph(const std::string& text, const std::string& file_name);

}  // namespace millrace::profile
