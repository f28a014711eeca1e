#include "millrace/job/placement.h"

#include <algorithm>
#include <set>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/job/text.h"

namespace millrace::job {
namespace {

constexpr int kLargestNode = 65'535;
constexpr int kLargestDevice = 1'023;
constexpr int kLargestShare = 1'000'000;
constexpr size_t kMostReplicas = 65'536;  // of a whole placement

bool is_digit(char c) { return c >= '0' && c <= '9'; }

class PlacementParser {
 public:
  explicit PlacementParser(std::string_view text) : text_(text) {}

  Placement parse() {
    do {
      stages_.emplace_back();
      used_.clear();
      do parse_run();
      while (take(','));
    } while (take('.'));
    if (at_ < text_.size()) refuse_here("'.' before the next stage or ',' before more of this one");
    return std::move(stages_);
  }

 private:
  void parse_run() {
    if (used_.empty() && (at_ == text_.size() || text_[at_] == '.')) {
      fail("stage {} is empty; write its devices, e.g. 0:0-6.0:7", stages_.size() - 1);
    }
    const size_t begin = at_;
    const int node = parse_int("node", kLargestNode);
    if (!take(':')) refuse_here("':' and a device");
    const int first = parse_int("device", kLargestDevice);
    const int last = take('-') ? parse_int("device", kLargestDevice) : first;
    if (last < first) {
      at_ = begin;
      fail("the devices {0}-{1} run backwards; write {2}:{1}-{0}", first, last, node);
    }
    for (int device = first; device <= last; ++device) {
      if (!used_.insert({node, device}).second) {
        at_ = begin;
        fail("stage {} names device {}:{} twice; write it once", stages_.size() - 1, node, device);
      }
      stages_.back().push_back({node, device});
    }
    num_replicas_ += static_cast<size_t>(last - first) + 1;
    if (num_replicas_ > kMostReplicas) fail("more than {} replicas; write fewer devices", kMostReplicas);
  }

  int parse_int(std::string_view what, int largest) {
    const size_t begin = at_;
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    if (at_ == begin) refuse_here(fmt::format("a {}'s number", what));
    const std::string_view digits = text_.substr(begin, at_ - begin);
    int value = 0;
    if (parse_number(digits, value) == NumberFault::Ok && value <= largest) return value;
    at_ = begin;
    fail("{} {} is too large; write one up to {}", what, digits.substr(0, 20), largest);
  }

  bool take(char c) {
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  [[noreturn]] void refuse_here(std::string_view wanted) {
    const std::string found = at_ == text_.size() ? "the text ends" : in_quotes(text_.substr(at_, 1)) + " stands";
    fail("{} where {} belongs; write e.g. 0:0-6.0:7", found, wanted);
  }

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
    fail_input("parallel.placement {}, character {}: {}", in_quotes(text_), at_ + 1,
               fmt::format(format, std::forward<Args>(args)...));
  }

  std::string_view text_;
  size_t at_ = 0;
  Placement stages_;
  std::set<DeviceId> used_;  // by the current stage
  size_t num_replicas_ = 0;
};

}  // namespace

Placement parse_placement(std::string_view text) { return PlacementParser(text).parse(); }

std::vector<double> parse_stage_weights(std::string_view text) {
  std::vector<double> weights;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(':', begin), text.size());
    const std::string_view item = text.substr(begin, end - begin);
    double weight = 0;
    if (parse_number(item, weight) != NumberFault::Ok || weight <= 0) {
      fail_input("parallel.stage_weights {}: {}, of stage {}, is not a positive number; write e.g. 10:1",
                 in_quotes(text), in_quotes(item), weights.size());
    }
    weights.push_back(weight);
    begin = end + 1;
  }
  return weights;
}

Shares parse_shares(std::string_view text) {
  Shares shares(1);
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find_first_of(":.", begin), text.size());
    const std::string_view item = text.substr(begin, end - begin);
    int share = 0;
    if (parse_number(item, share) != NumberFault::Ok || share < 1 || share > kLargestShare) {
      fail_input(
          "parallel.shares {}: {}, of replica {} of stage {}, is not a whole number from 1 to {}; write e.g. 5:3.1",
          in_quotes(text), in_quotes(item), shares.back().size(), shares.size() - 1, kLargestShare);
    }
    shares.back().push_back(share);
    if (end < text.size() && text[end] == '.') shares.emplace_back();
    begin = end + 1;
  }
  return shares;
}

}  // namespace millrace::job
