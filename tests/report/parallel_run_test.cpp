#include "millrace/report/parallel_run.h"

#include <gtest/gtest.h>

namespace millrace::report {
namespace {

using nlohmann::json;
using runtime::WorkerRecord;

WorkerRecord worker(int index, std::vector<int> stages, double busy_s, std::vector<int64_t> bytes_sent) {
  WorkerRecord made;
  made.worker = index;
  made.device = "0:" + std::to_string(index);
  made.host = "mill";
  made.stages = std::move(stages);
  made.planned_bytes = int64_t{3} << 20;
  made.train_s = 10;
  made.busy_s = busy_s;
  made.waited_s = made.exposed_s = 1;
  made.data_s = 0.5;
  made.transfer_s = 2;
  made.bytes_sent = std::move(bytes_sent);
  return made;
}

ParallelRun two_workers() {
  return {"ssp", {1, 0}, {worker(0, {0, 2}, 5, {0, 2 << 20}), worker(1, {1}, 8, {4 << 20, 0})}};
}

json to_json(const ParallelRun& run) {
  nlohmann::ordered_json added;
  add_json(added, run);
  return json::parse(added.dump());
}

std::string rows(const ParallelRun& run, int64_t steps) {
  Table table;
  add_rows(table, run, steps);
  return table.str();
}

TEST(ParallelRun, BubbleIsWhatIsNeitherBusyNorTakingData) {
  EXPECT_DOUBLE_EQ(bubble_share(two_workers()).value(), (20 - 13 - 1) / 20.0);
}

TEST(ParallelRun, CommunicationIsHiddenWhereNobodyWaited) {
  ParallelRun run = two_workers();
  EXPECT_DOUBLE_EQ(comm_share(run).value(), 4 / 20.0);
  EXPECT_DOUBLE_EQ(comm_hidden_share(run).value(), 0.5);
  run.workers[1].exposed_s = 9;  // mostly for the other stage
  EXPECT_EQ(comm_hidden_share(run), 0);
}

TEST(ParallelRun, JsonHasTheKeysScriptsRelyOn) {
  const json found = to_json(two_workers());
  EXPECT_EQ(found.at("mode"), "ssp");
  EXPECT_EQ(found.at("weight_delay"), (json{1, 0}));
  EXPECT_DOUBLE_EQ(found.at("bubble_share").get<double>(), 0.3);
  EXPECT_DOUBLE_EQ(found.at("comm_share").get<double>(), 0.2);
  EXPECT_DOUBLE_EQ(found.at("comm_hidden_share").get<double>(), 0.5);
  EXPECT_EQ(found.at("bytes_sent"), 6 << 20);
  EXPECT_EQ(found.at("links"),
            json::parse(R"([{"from": 0, "to": 1, "bytes": 2097152}, {"from": 1, "to": 0, "bytes": 4194304}])"));
  ASSERT_EQ(found.at("workers").size(), 2u);
  EXPECT_EQ(found.at("workers")[0], json::parse(R"({"worker": 0, "device": "0:0", "host": "mill", "stages": [0, 2],
                                                    "stage": 0, "peak_bytes": 3145728, "busy_s": 5.0})"));
}

TEST(ParallelRun, OneWorkerHasTheSameKeysAndSendsNothing) {
  ParallelRun run{"dp", {0}, {worker(0, {0}, 9.5, {0})}};
  run.workers[0].transfer_s = run.workers[0].exposed_s = 0;
  const json found = to_json(run);
  EXPECT_EQ(found.at("weight_delay"), json::array({0}));
  EXPECT_EQ(found.at("bubble_share"), 0);
  EXPECT_EQ(found.at("comm_share"), 0);
  EXPECT_TRUE(found.at("comm_hidden_share").is_null());
  EXPECT_EQ(found.at("bytes_sent"), 0);
  EXPECT_EQ(found.at("links"), json::array());
  EXPECT_EQ(found.at("workers").size(), 1u);
}

TEST(ParallelRun, SharesOfARunThatWasBrokenOffStayBetween0And1) {
  ParallelRun run = two_workers();
  for (WorkerRecord& broken : run.workers) broken.train_s = 1;
  EXPECT_EQ(bubble_share(run), 0);
  EXPECT_EQ(comm_share(run), 1);
  for (WorkerRecord& broken : run.workers) broken.train_s = 0;
  EXPECT_TRUE(to_json(run).at("bubble_share").is_null());
  EXPECT_TRUE(to_json(run).at("comm_share").is_null());
}

TEST(ParallelRun, TablesReadWell) {
  EXPECT_EQ(rows(two_workers(), 3),
            "mode           ssp, 2 workers\n"
            "bubble         30.0%\n"
            "communication  20.0% (50.0% of it hidden), 2.00 MiB a step\n");
  EXPECT_EQ(worker_table(two_workers()),
            "worker  device  stages   busy  waiting   planned      sent\n"
            "------  ------  ------  -----  -------  --------  --------\n"
            "     0     0:0    0, 2  50.0%    10.0%  3.00 MiB  2.00 MiB\n"
            "     1     0:1       1  80.0%    10.0%  3.00 MiB  4.00 MiB\n");
}

TEST(ParallelRun, OneWorkerNeedsNoTable) {
  const ParallelRun run{"dp", {0}, {worker(0, {0}, 9.5, {0})}};
  EXPECT_EQ(rows(run, 3), "");
  EXPECT_EQ(worker_table(run), "");
}

}  // namespace
}  // namespace millrace::report
