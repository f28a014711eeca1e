#include "millrace/report/trace.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

namespace millrace::report {
namespace {

using runtime::Activity;
using runtime::Span;
using runtime::WorkerRecord;

constexpr int64_t kShortestWaitNs =
    1'000;  // a message that was there already, or a step with nothing left to do, is no event
constexpr int64_t kShortestIdleNs = 50'000;  // below: the ordinary step from one action to the next

const char* category_of(Activity activity) {
  switch (activity) {
    case Activity::Forward: return "forward";
    case Activity::Recompute: return "forward again";
    case Activity::InputGrad: return "input gradient";
    case Activity::WeightGrad: return "weight gradient";
    case Activity::Send:
    case Activity::Receive:
    case Activity::Reduce: return "communication";
    case Activity::Step: return "update";
    case Activity::Data: return "data";
    case Activity::Evaluate: return "evaluation";
    case Activity::kCount: break;
  }
  return "other";
}

bool counts_updates(Activity activity) { return activity == Activity::Reduce || activity == Activity::Step; }

bool is_shown(const Span& span) {
  const bool may_be_nothing = span.activity == Activity::Send || span.activity == Activity::Receive ||
                              span.activity == Activity::Data || span.activity == Activity::WeightGrad ||
                              span.activity == Activity::Step;
  return !may_be_nothing || span.end_ns - span.begin_ns >= kShortestWaitNs;
}

std::string worker_name(const WorkerRecord& record) {
  return fmt::format("worker {} ({}) {} {}", record.worker, record.device,
                     record.stages.size() == 1 ? "stage" : "stages", fmt::join(record.stages, ", "));
}

// Names come from outside: quoted and escaped.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

// As text, event by event: a run has more events than a JSON document should be built of in memory.
class TraceWriter {
 public:
  void name_process(int pid, const std::string& name) {
    event(R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":{}}}}})", pid, quoted(name));
  }
  void name_thread(int pid, int tid, const std::string& name) {
    event(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":{}}}}})", pid, tid, quoted(name));
    event(R"({{"ph":"M","name":"thread_sort_index","pid":{},"tid":{},"args":{{"sort_index":{}}}}})", pid, tid, tid);
  }
  void span(int pid, int tid, int64_t origin_ns, const Span& span) {
    event(R"({{"ph":"X","name":"{}","cat":"{}","pid":{},"tid":{},"ts":{},"dur":{},"args":{{"stage":{},"{}":{}}}}})",
          name_of(span.activity), category_of(span.activity), pid, tid, us(span.begin_ns - origin_ns),
          us(span.end_ns - span.begin_ns), span.stage, counts_updates(span.activity) ? "update" : "micro-batch",
          span.microbatch);
  }
  void idle(int pid, int tid, int64_t begin_ns, int64_t duration_ns) {
    event(R"({{"ph":"X","name":"idle","cat":"idle","pid":{},"tid":{},"ts":{},"dur":{}}})", pid, tid, us(begin_ns),
          us(duration_ns));
  }
  std::string finish() && { return std::move(text_) + "\n],\"displayTimeUnit\":\"ms\"}\n"; }

 private:
  // In digits, not through a double: events that touch must not come to overlap.
  static std::string us(int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

  template <typename... Values>
  void event(fmt::format_string<const Values&...> format, const Values&... values) {
    text_ += first_ ? "\n" : ",\n";
    first_ = false;
    fmt::format_to(std::back_inserter(text_), format, values...);
  }

  std::string text_ = "{\"traceEvents\":[";
  bool first_ = true;
};

struct Host {
  int pid = 0;
  int64_t origin_ns = std::numeric_limits<int64_t>::max();
};

// Numbered from 1, like the threads: viewers take 0 for the idle process.
std::map<std::string, Host> hosts_of(std::span<const WorkerRecord> records) {
  std::map<std::string, Host> hosts;
  for (const WorkerRecord& record : records) {
    Host& host = hosts[record.host];
    if (host.pid == 0) host.pid = static_cast<int>(hosts.size());
    for (const Span& span : record.spans) host.origin_ns = std::min(host.origin_ns, span.begin_ns);
  }
  return hosts;
}

void write_worker(TraceWriter& writer, const Host& host, const WorkerRecord& record) {
  const int tid = record.worker + 1;
  writer.name_thread(host.pid, tid, worker_name(record));
  const Span* previous = nullptr;
  for (const Span& span : record.spans) {
    if (!is_shown(span)) continue;
    if (previous && span.begin_ns - previous->end_ns >= kShortestIdleNs) {
      writer.idle(host.pid, tid, previous->end_ns - host.origin_ns, span.begin_ns - previous->end_ns);
    }
    writer.span(host.pid, tid, host.origin_ns, span);
    previous = &span;
  }
}

}  // namespace

std::string chrome_trace(std::span<const WorkerRecord> records) {
  TraceWriter writer;
  const std::map<std::string, Host> hosts = hosts_of(records);
  for (const auto& [name, host] : hosts) writer.name_process(host.pid, name);
  for (const WorkerRecord& record : records) write_worker(writer, hosts.at(record.host), record);
  return std::move(writer).finish();
}

}  // namespace millrace::report
