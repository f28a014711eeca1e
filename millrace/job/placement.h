// Where stages run and how much of the model each takes, as users write it:
//
//   placement = stage ('.' stage)*      stage = run (',' run)*      run = node ':' device ['-' device]
//   weights   = number (':' number)*
//   shares    = weights ('.' weights)*
//
// "0:0-6.0:7" puts stage 0 on devices 0 to 6 of node 0 and stage 1 on device 7. Stages may share devices.
// Shares "5:3.1" give the first of two replicas of stage 0 five rows of a micro-batch for every three of the second.
#pragma once

#include <compare>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::job {

struct DeviceId {
  int node = 0;
  int device = 0;
  auto operator<=>(const DeviceId&) const = default;
};

// Per stage the devices of its replicas, in the order written.
using Placement = std::vector<std::vector<DeviceId>>;

// All throw std::invalid_argument with the key, the text, the place in it and what to write.
Placement parse_placement(std::string_view text);
std::vector<double> parse_stage_weights(std::string_view text);

// Per stage the share of each replica.
using Shares = std::vector<std::vector<int>>;
Shares parse_shares(std::string_view text);

}  // namespace millrace::job
