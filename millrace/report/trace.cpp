#include "millrace/report/trace.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "millrace/report/units.h"

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

std::string part_of(const WorkerRecord& record) {
  return fmt::format("({}) {} {}", record.device, record.stages.size() == 1 ? "stage" : "stages",
                     fmt::join(record.stages, ", "));
}

// Names come from outside: quoted and escaped.
std::string in_ascii(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}
std::string quoted(const std::string& text) { return in_ascii(text); }

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
  // Time in which a worker did nothing that is shown.
  void gap(int pid, int tid, const std::string& name, const char* category, int64_t begin_ns, int64_t end_ns) {
    event(R"({{"ph":"X","name":{},"cat":"{}","pid":{},"tid":{},"ts":{},"dur":{}}})", quoted(name), category, pid, tid,
          us(begin_ns), us(end_ns - begin_ns));
  }
  // Of the run as a whole.
  void put_first(int pid) {
    event(R"({{"ph":"M","name":"process_sort_index","pid":{},"args":{{"sort_index":-1}}}})", pid);
  }
  void chapter(int pid, const std::string& name, const char* category, int64_t begin_ns, int64_t end_ns,
               const nlohmann::ordered_json& facts) {
    event(R"({{"ph":"X","name":{},"cat":"{}","pid":{},"tid":1,"ts":{},"dur":{},"args":{}}})", quoted(name), category,
          pid, us(begin_ns), us(end_ns - begin_ns), in_ascii(facts));
  }
  void count(int pid, const char* name, int64_t at_ns, int value) {
    event(R"({{"ph":"C","name":"{0}","pid":{1},"ts":{2},"args":{{"{0}":{3}}}}})", name, pid, us(at_ns), value);
  }
  std::string finish(const SpanCounts& counts) && {
    return std::move(text_) +
           fmt::format("\n],\"displayTimeUnit\":\"ms\",\"otherData\":{{\"spans\":{},\"spans_left_out\":{}}}}}\n",
                       counts.kept, counts.left_out);
  }

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

using Trainings = std::span<const std::vector<WorkerRecord>>;

// Numbered from 1, like the threads: viewers take 0 for the idle process.
std::map<std::string, Host> hosts_of(Trainings trainings) {
  std::map<std::string, Host> hosts;
  for (const std::vector<WorkerRecord>& records : trainings) {
    for (const WorkerRecord& record : records) {
      Host& host = hosts[record.host];
      if (host.pid == 0) host.pid = static_cast<int>(hosts.size());
      for (const Span& span : record.spans) host.origin_ns = std::min(host.origin_ns, span.begin_ns);
    }
  }
  return hosts;
}

// What a worker did in one training after another.
class Track {
 public:
  Track(TraceWriter& writer, const Host& host, int worker) : writer_(writer), host_(host), tid_(worker + 1) {}

  void add(const WorkerRecord& record, size_t training) {
    const std::string part = part_of(record);
    if (name_.empty()) name_ = fmt::format("worker {} {}", record.worker, part);
    if (!part_.empty() && part != part_) name_ += ", then " + part;
    part_ = part;
    for (const Span& span : record.spans) {
      if (!is_shown(span)) continue;
      if (end_ns_ && training != training_) {
        gap(training == training_ + 1 ? "pause" : "not in use", "pause", span.begin_ns);
      } else if (end_ns_ && span.begin_ns - *end_ns_ >= kShortestIdleNs) {
        gap("idle", "idle", span.begin_ns);
      }
      writer_.span(host_.pid, tid_, host_.origin_ns, span);
      end_ns_ = span.end_ns;
      training_ = training;
    }
    if (record.left_out.spans == 0 || !end_ns_) return;
    gap(fmt::format("{} spans not kept", record.left_out.spans), "not kept", record.left_out.until_ns);
    end_ns_ = record.left_out.until_ns;
    training_ = training;
  }
  void finish() { writer_.name_thread(host_.pid, tid_, name_); }

 private:
  void gap(const std::string& name, const char* category, int64_t until_ns) {
    writer_.gap(host_.pid, tid_, name, category, *end_ns_ - host_.origin_ns,
                std::max(until_ns, *end_ns_) - host_.origin_ns);
  }

  TraceWriter& writer_;
  const Host& host_;
  const int tid_;
  std::string name_, part_;
  std::optional<int64_t> end_ns_;  // of what was shown last
  size_t training_ = 0;            // that it was of
};

void write_workers(TraceWriter& writer, const std::map<std::string, Host>& hosts, Trainings trainings) {
  std::map<std::pair<std::string, int>, Track> tracks;
  for (size_t i = 0; i < trainings.size(); ++i) {
    for (const WorkerRecord& record : trainings[i]) {
      const auto& [at, added] =
          tracks.try_emplace({record.host, record.worker}, writer, hosts.at(record.host), record.worker);
      at->second.add(record, i);
    }
  }
  for (auto& [key, track] : tracks) track.finish();
}

// By the clock of `host`, where the run is conducted.
void write_course(TraceWriter& writer, int pid, const Host& host, const Course& course) {
  writer.name_process(pid, "run");
  writer.put_first(pid);
  writer.name_thread(pid, 1, "trainings");
  for (size_t i = 0; i < course.stretches.size(); ++i) {
    const runtime::Stretch& s = course.stretches[i];
    const int64_t begin_ns = s.begin_ns - host.origin_ns, end_ns = s.end_ns - host.origin_ns;
    if (i > 0) {
      const runtime::Transition& t = course.transitions[i - 1];
      writer.chapter(pid, fmt::format("pause before step {}", t.step), "pause",
                     course.stretches[i - 1].end_ns - host.origin_ns, begin_ns,
                     {{"why", t.why}, {"plan", t.plan}, {"waited_for_next_ms", t.waited_s * 1e3}});
    }
    writer.chapter(pid,
                   fmt::format("{} of {} layers frozen, {}, {}", s.frozen, course.layers, counted(s.stages, "stage"),
                               counted(s.replicas, "replica")),
                   "training", begin_ns, end_ns,
                   {{"first_step", s.first_step},
                    {"steps", s.steps},
                    {"batch", s.batch},
                    {"step_ms", s.step_s * 1e3},
                    {"cached_share", s.cached}});
    // Once more at the end, up to which a counter is drawn.
    for (const int64_t at_ns : {begin_ns, end_ns}) {
      writer.count(pid, "frozen layers", at_ns, s.frozen);
      writer.count(pid, "stages", at_ns, s.stages);
      writer.count(pid, "replicas", at_ns, s.replicas);
    }
  }
}

}  // namespace

SpanCounts count_spans(std::span<const std::vector<WorkerRecord>> trainings) {
  SpanCounts counts;
  for (const std::vector<WorkerRecord>& records : trainings) {
    for (const WorkerRecord& record : records) {
      counts.kept += static_cast<int64_t>(record.spans.size());
      counts.left_out += record.left_out.spans;
    }
  }
  return counts;
}

std::string chrome_trace(std::span<const WorkerRecord> records) {
  const std::vector<WorkerRecord> only(records.begin(), records.end());
  return chrome_trace({}, std::span(&only, 1));
}

std::string chrome_trace(const Course& course, std::span<const std::vector<WorkerRecord>> trainings) {
  TraceWriter writer;
  std::map<std::string, Host> hosts = hosts_of(trainings);
  const bool has_course = course.stretches.size() > 1 || (!course.stretches.empty() && course.stretches[0].frozen > 0);
  if (has_course && !trainings.empty() && !trainings[0].empty()) {
    // Process 0 has worker 0.
    Host& conducts = hosts.at(trainings[0][0].host);
    conducts.origin_ns = std::min(conducts.origin_ns, course.stretches[0].begin_ns);
    write_course(writer, static_cast<int>(hosts.size()) + 1, conducts, course);
  }
  for (const auto& [name, host] : hosts) writer.name_process(host.pid, name);
  write_workers(writer, hosts, trainings);
  return std::move(writer).finish(count_spans(trainings));
}

}  // namespace millrace::report
