#include "millrace/job/stage_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "millrace/base/error.h"
#include "millrace/job/small_file.h"
#include "millrace/job/text.h"

namespace millrace::job {
namespace {

using nlohmann::json;

constexpr const char* kModules = "module_to_stage_map";
constexpr const char* kRanks = "stage_to_rank_map";
constexpr int kLargest = 65'535;  // of stages and ranks

class StageFileReader {
 public:
  explicit StageFileReader(const std::string& file_name) : file_(file_name) {}

  StageFile read(const std::string& text) const {
    const json document = parse(text);
    if (!document.is_object()) fail("not an object; write {{\"{}\": [...], \"{}\": {{...}}}}", kModules, kRanks);
    StageFile stages;
    stages.module_to_stage = read_modules(member(document, kModules, json::value_t::array, "[0, 1, 1]"));
    const json& ranks = member(document, kRanks, json::value_t::object, "{\"0\": [0, 1, 2], \"1\": [3]}");
    stages.placement = read_ranks(ranks, stages.module_to_stage.back() + 1);
    check_ranks(stages.placement);
    return stages;
  }

 private:
  json parse(const std::string& text) const {
    try {
      return json::parse(text);
    } catch (const json::parse_error& error) {
      const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(error.byte, text.size()));
      fail_input("{}:{}: not JSON; write e.g. {{\"{}\": [0, 1], \"{}\": {{\"0\": [0], \"1\": [1]}}}}", file_,
                 1 + std::count(text.begin(), end, '\n'), kModules, kRanks);
    } catch (const json::out_of_range&) {
      fail("holds a number out of range; stages and ranks go up to {}", kLargest);
    }
  }

  const json& member(const json& document, const char* key, json::value_t type, const char* example) const {
    const auto found = document.find(key);
    if (found == document.end()) fail("{} is missing; write e.g. \"{}\": {}", key, key, example);
    if (found->type() != type) fail("{} is not of its form; write e.g. \"{}\": {}", key, key, example);
    return *found;
  }

  int whole_number(const json& value, const std::string& what) const {
    if (!value.is_number_integer()) fail("{} is {}, not a whole number", what, in_quotes(value.dump()));
    const bool fits = value >= 0 && value <= kLargest;
    if (!fits) fail("{} is {}; it must lie between 0 and {}", what, value.dump(), kLargest);
    return value.get<int>();
  }

  std::vector<int> read_modules(const json& list) const {
    if (list.empty()) fail("{} is empty; write one stage for each module", kModules);
    std::vector<int> stages;
    for (const json& item : list) {
      const size_t module = stages.size();
      const int stage = whole_number(item, fmt::format("{}: the stage of module {}", kModules, module));
      const int before = module == 0 ? 0 : stages.back();
      if (module == 0 && stage != 0) fail("{} begins with stage {}; it must begin with 0", kModules, stage);
      if (stage < before) {
        fail("{}: module {} is of stage {}, after one of stage {}; stages must not fall", kModules, module, stage,
             before);
      }
      if (stage > before + 1) {
        fail("{}: module {} is of stage {}, after one of stage {}; stage {} has no module", kModules, module, stage,
             before, before + 1);
      }
      stages.push_back(stage);
    }
    return stages;
  }

  Placement read_ranks(const json& map, int num_stages) const {
    for (const auto& [key, ranks] : map.items()) {
      int stage = 0;
      if (parse_number(key, stage) != NumberFault::Ok || stage < 0 || stage >= num_stages) {
        fail("{} names stage {}; {} has stages 0 to {}", kRanks, in_quotes(key), kModules, num_stages - 1);
      }
    }
    Placement placement;
    for (int stage = 0; stage < num_stages; ++stage) {
      const auto found = map.find(std::to_string(stage));
      if (found == map.end()) fail("{} has no stage {}; write e.g. \"{}\": [{}]", kRanks, stage, stage, stage);
      if (!found->is_array() || found->empty()) {
        fail("{}: stage {} has no ranks; write e.g. \"{}\": [{}]", kRanks, stage, stage, stage);
      }
      std::vector<DeviceId>& devices = placement.emplace_back();
      for (const json& rank : *found) {
        devices.push_back({0, whole_number(rank, fmt::format("{}: a rank of stage {}", kRanks, stage))});
      }
    }
    return placement;
  }

  // Every rank from 0 to the largest belongs to exactly one stage.
  void check_ranks(const Placement& placement) const {
    std::vector<int> ranks;
    for (const auto& devices : placement) {
      for (const DeviceId& id : devices) ranks.push_back(id.device);
    }
    std::sort(ranks.begin(), ranks.end());
    for (int i = 0; i < static_cast<int>(ranks.size()); ++i) {
      if (i > 0 && ranks[i] == ranks[i - 1]) fail("{} names rank {} twice; write each once", kRanks, ranks[i]);
      if (ranks[i] != i) fail("{} goes up to rank {} without rank {}; write every rank once", kRanks, ranks.back(), i);
    }
  }

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    fail_input("{}: {}", file_, fmt::format(format, std::forward<Args>(args)...));
  }

  const std::string& file_;
};

}  // namespace

StageFile parse_stage_file(const std::string& json_text, const std::string& file_name) {
  return StageFileReader(file_name).read(json_text);
}

StageFile read_stage_file(const std::string& path) {
  return parse_stage_file(read_small_file(path, "stage file"), path);
}

Placement placed_stages(const Parallel& parallel) {
  if (!parallel.stage_file.empty()) return read_stage_file(parallel.stage_file).placement;
  return parallel.placement.empty() ? Placement() : parse_placement(parallel.placement);
}

}  // namespace millrace::job
