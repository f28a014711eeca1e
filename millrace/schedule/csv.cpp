#include "millrace/schedule/csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>

#include "millrace/base/error.h"
#include "millrace/job/text.h"

namespace millrace::schedule {
namespace {

constexpr std::string_view kLetters = "FBIW";  // in the order of Kind

struct Row {
  int line = 0;
  std::vector<Action> actions;
};

std::optional<int> number(std::string_view digits) {
  int value = 0;
  if (job::parse_number(digits, value) != job::NumberFault::Ok || value < 0) return {};
  return value;
}

std::optional<Action> parse_cell(std::string_view cell) {
  const size_t letter = cell.find_first_of(kLetters);
  if (letter == std::string_view::npos) return {};
  const std::optional<int> stage = number(cell.substr(0, letter)), microbatch = number(cell.substr(letter + 1));
  if (!stage || !microbatch) return {};
  Action action;
  action.kind = static_cast<Kind>(kLetters.find(cell[letter]));
  action.stage = *stage;
  action.microbatch = *microbatch;
  return action;
}

Row parse_row(std::string_view text, const std::string& where, int line) {
  Row row{line, {}};
  int column = 1;
  for (size_t begin = 0; begin <= text.size(); ++column) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view cell = job::trimmed(text.substr(begin, end - begin));
    begin = end + 1;
    if (cell.empty()) continue;
    const std::optional<Action> action = parse_cell(cell);
    if (!action) {
      fail_input("{}:{}: cell {} is {}; write STAGE, one of F B I W, MICRO-BATCH, such as 0F3", where, line, column,
                 job::in_quotes(cell));
    }
    row.actions.push_back(*action);
  }
  if (row.actions.empty()) fail_input("{}:{}: the row has no action; write one such as 0F0, or no row", where, line);
  return row;
}

std::vector<Row> parse_rows(std::string_view text, const std::string& where) {
  std::vector<Row> rows;
  int line = 1;
  for (size_t begin = 0; begin < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view content = text.substr(begin, end - begin);
    begin = end + 1;
    content = job::trimmed(content.substr(0, content.find_first_of("#\r")));
    if (!content.empty()) rows.push_back(parse_row(content, where, line));
  }
  if (rows.empty()) fail_input("{}: no row; write one per worker, such as 0F0,0F1,0B0,0B1", where);
  return rows;
}

// 0, 1, 2, ... without a gap; a stray large number would otherwise mean as many missing actions.
int count_from_zero(const std::set<int>& numbers, const char* what, const std::string& where) {
  int next = 0;
  for (const int number : numbers) {
    if (number != next)
      fail_input("{}: {} {} appears, but no {} {}; count them from 0", where, what, number, what, next);
    ++next;
  }
  return next;
}

// Per stage: the rows that run it, with the micro-batches each runs.
using Shares = std::vector<std::map<int, std::set<int>>>;

bool takes_turns(const std::map<int, std::set<int>>& shares) {
  size_t total = 0;
  std::set<int> all;
  for (const auto& [row, microbatches] : shares) {
    total += microbatches.size();
    all.insert(microbatches.begin(), microbatches.end());
  }
  return total == all.size();
}

// The rows in the order of their turns.
std::vector<int> in_turn(const std::map<int, std::set<int>>& shares, int stage, const std::vector<Row>& rows,
                         const std::string& where) {
  std::vector<int> order;
  for (const auto& [row, microbatches] : shares) order.push_back(row);
  std::sort(order.begin(), order.end(), [&](int a, int b) { return *shares.at(a).begin() < *shares.at(b).begin(); });
  const int num_replicas = static_cast<int>(order.size());
  for (int replica = 0; replica < num_replicas; ++replica) {
    for (const int microbatch : shares.at(order[replica])) {
      const int expected = order[microbatch % num_replicas];
      if (expected == order[replica]) continue;
      fail_input("{}:{}: micro-batch {} of stage {} runs here; {} rows take turns, so it belongs in line {}", where,
                 rows[order[replica]].line, microbatch, stage, num_replicas, rows[expected].line);
    }
  }
  return order;
}

Pipeline infer_pipeline(const std::vector<Row>& rows, const std::string& where) {
  std::set<int> stages, microbatches;
  for (const Row& row : rows) {
    for (const Action& action : row.actions) {
      stages.insert(action.stage);
      microbatches.insert(action.microbatch);
    }
  }
  Pipeline pipeline;
  pipeline.mode = job::Mode::OneFOneB;
  pipeline.num_workers = static_cast<int>(rows.size());
  pipeline.stages.resize(count_from_zero(stages, "stage", where));
  pipeline.microbatches = count_from_zero(microbatches, "micro-batch", where);
  pipeline.versions.assign(pipeline.stages.size(), 1);
  pipeline.buckets.assign(pipeline.stages.size(), 1);
  for (int stage = 0; stage + 1 < pipeline.num_stages(); ++stage) pipeline.edges.push_back({stage, stage + 1});

  Shares shares(pipeline.stages.size());
  for (size_t row = 0; row < rows.size(); ++row) {
    for (const Action& action : rows[row].actions)
      shares[action.stage][static_cast<int>(row)].insert(action.microbatch);
  }
  std::optional<int> replicated;  // the first such stage says what all do
  for (int stage = 0; stage < pipeline.num_stages(); ++stage) {
    if (shares[stage].size() > 1) {
      const auto how = takes_turns(shares[stage]) ? job::Replicas::RoundRobin : job::Replicas::Split;
      if (replicated && how != pipeline.replicas) {
        fail_input("{}: rows of stage {} {} micro-batches, those of stage {} do not; let all split or all take turns",
                   where, *replicated, pipeline.replicas == job::Replicas::Split ? "share" : "take turns with", stage);
      }
      replicated = replicated.value_or(stage);
      pipeline.replicas = how;
    }
    if (shares[stage].size() > 1 && pipeline.replicas == job::Replicas::RoundRobin) {
      pipeline.stages[stage] = in_turn(shares[stage], stage, rows, where);
    } else {
      for (const auto& [row, unused] : shares[stage]) pipeline.stages[stage].push_back(row);
    }
    // Every replica gets a row, and equal parts where that is possible.
    pipeline.rows = std::lcm(pipeline.rows, int64_t{pipeline.num_replicas(stage)});
  }
  return pipeline;
}

}  // namespace

std::string to_csv(const Schedule& schedule) {
  std::string text;
  for (const std::vector<Action>& actions : schedule.workers) {
    const char* comma = "";
    for (const Action& action : actions) {
      if (!is_compute(action.kind) || action.part > 0) continue;
      text +=
          fmt::format("{}{}{}{}", comma, action.stage, kLetters[static_cast<size_t>(action.kind)], action.microbatch);
      comma = ",";
    }
    text += '\n';
  }
  return text;
}

Schedule read_csv(const std::string& text, const std::string& where) {
  std::vector<Row> rows = parse_rows(text, where);
  Schedule schedule;
  schedule.pipeline = infer_pipeline(rows, where);
  schedule.microbatches = schedule.pipeline.microbatches;
  schedule.trains = false;
  for (Row& row : rows) {
    for (const Action& action : row.actions) schedule.trains |= action.kind != Kind::Forward;
    schedule.workers.push_back(std::move(row.actions));
  }
  return schedule;
}

}  // namespace millrace::schedule
