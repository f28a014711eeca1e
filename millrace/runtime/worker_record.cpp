#include "millrace/runtime/worker_record.h"

#include <nlohmann/json.hpp>

namespace millrace::runtime {

std::string to_text(const WorkerRecord& r) {
  nlohmann::json spans = nlohmann::json::array();
  for (const Span& s : r.spans) {
    spans.push_back({s.begin_ns, s.end_ns, s.microbatch, s.stage, static_cast<int>(s.activity)});
  }
  const nlohmann::json json = {{"worker", r.worker},
                               {"device", r.device},
                               {"host", r.host},
                               {"stages", r.stages},
                               {"planned_bytes", r.planned_bytes},
                               {"train_s", r.train_s},
                               {"busy_s", r.busy_s},
                               {"waited_s", r.waited_s},
                               {"exposed_s", r.exposed_s},
                               {"data_s", r.data_s},
                               {"transfer_s", r.transfer_s},
                               {"bytes_sent", r.bytes_sent},
                               {"left_out", r.skipped.left_out},
                               {"skipped", r.skipped.while_reading},
                               {"reasons", r.skipped.reasons},
                               {"rows_fetched", r.rows_fetched},
                               {"rows_computed", r.rows_computed},
                               {"cache_verdict", r.cache_verdict},
                               {"spans", std::move(spans)},
                               {"spans_left_out", {r.left_out.spans, r.left_out.until_ns}}};
  return json.dump();
}

WorkerRecord record_from_text(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  WorkerRecord r;
  json.at("worker").get_to(r.worker);
  json.at("device").get_to(r.device);
  json.at("host").get_to(r.host);
  json.at("stages").get_to(r.stages);
  json.at("planned_bytes").get_to(r.planned_bytes);
  json.at("train_s").get_to(r.train_s);
  json.at("busy_s").get_to(r.busy_s);
  json.at("waited_s").get_to(r.waited_s);
  json.at("exposed_s").get_to(r.exposed_s);
  json.at("data_s").get_to(r.data_s);
  json.at("transfer_s").get_to(r.transfer_s);
  json.at("bytes_sent").get_to(r.bytes_sent);
  json.at("left_out").get_to(r.skipped.left_out);
  json.at("skipped").get_to(r.skipped.while_reading);
  json.at("reasons").get_to(r.skipped.reasons);
  json.at("rows_fetched").get_to(r.rows_fetched);
  json.at("rows_computed").get_to(r.rows_computed);
  json.at("cache_verdict").get_to(r.cache_verdict);
  for (const auto& s : json.at("spans")) {
    r.spans.push_back({s[0], s[1], s[2], s[3], static_cast<Activity>(s[4].get<int>())});
  }
  r.left_out = {json.at("spans_left_out").at(0), json.at("spans_left_out").at(1)};
  return r;
}

}  // namespace millrace::runtime
