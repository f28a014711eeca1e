#include "millrace/runtime/run_records.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace millrace::runtime {

size_t fair_share(std::span<const size_t> wanted, size_t all) {
  std::vector<size_t> rising(wanted.begin(), wanted.end());
  std::sort(rising.begin(), rising.end());
  size_t left = all;
  for (size_t i = 0; i < rising.size(); ++i) {
    const size_t share = left / (rising.size() - i);
    if (rising[i] > share) return share;
    left -= rising[i];
  }
  return rising.empty() ? all : rising.back();
}

void RunRecords::add(std::vector<WorkerRecord> training) {
  trainings_.push_back(std::move(training));
  for (const WorkerRecord& record : trainings_.back()) shorten(record.worker);
}

void RunRecords::shorten(int worker) {
  std::vector<WorkerRecord*> records;
  std::vector<size_t> wanted;
  for (std::vector<WorkerRecord>& training : trainings_) {
    for (WorkerRecord& record : training) {
      if (record.worker != worker) continue;
      records.push_back(&record);
      wanted.push_back(record.spans.size());
    }
  }
  const size_t share = fair_share(wanted, spans_of_worker_);
  for (WorkerRecord* record : records) {
    if (record->spans.size() <= share) continue;
    record->left_out.until_ns = std::max(record->left_out.until_ns, record->spans.back().end_ns);
    record->left_out.spans += static_cast<int64_t>(record->spans.size() - share);
    record->spans.resize(share);
    record->spans.shrink_to_fit();
  }
}

std::string to_text(const std::vector<std::vector<WorkerRecord>>& trainings) {
  nlohmann::json json = nlohmann::json::array();
  for (const std::vector<WorkerRecord>& training : trainings) {
    nlohmann::json& records = json.emplace_back(nlohmann::json::array());
    for (const WorkerRecord& record : training) records.push_back(to_text(record));
  }
  return json.dump();
}

std::vector<std::vector<WorkerRecord>> merge_records(const std::vector<std::string>& of_processes) {
  std::vector<std::vector<WorkerRecord>> trainings;
  for (const std::string& text : of_processes) {
    const auto json = nlohmann::json::parse(text);
    trainings.resize(std::max(trainings.size(), json.size()));
    for (size_t i = 0; i < json.size(); ++i) {
      for (const auto& record : json[i]) trainings[i].push_back(record_from_text(record.get<std::string>()));
    }
  }
  return trainings;
}

}  // namespace millrace::runtime
