// Each sample exactly once, whoever loads it.
#include "millrace/plan/loading.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

#include "millrace/data/loader.h"
#include "millrace/model/model.h"

namespace millrace::plan {
namespace {

using data::Batch;
using data::Loader;

struct Case {
  int64_t samples, batch;
  int replicas, microbatches;
  job::Mode mode;
  job::Replicas kind;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& [samples, batch] : std::vector<std::pair<int64_t, int64_t>>{{7, 6}, {31, 5}, {101, 12}, {13, 30}}) {
    for (int replicas = 1; replicas <= 5; ++replicas) {
      all.push_back({samples, batch, replicas, 1, job::Mode::Dp, job::Replicas::Split});
      all.push_back({samples, batch, replicas, 1, job::Mode::Ssp, job::Replicas::Split});
      all.push_back({samples, batch, replicas, 1, job::Mode::PipeDream, job::Replicas::RoundRobin});
      for (int parts : {2, 3, 6}) {
        if (batch % parts != 0) continue;
        if (batch / parts >= replicas)
          all.push_back({samples, batch, replicas, parts, job::Mode::Dp, job::Replicas::Split});
        if (parts % replicas == 0)
          all.push_back({samples, batch, replicas, parts, job::Mode::Dp, job::Replicas::RoundRobin});
      }
    }
  }
  return all;
}

job::Job job_of(const Case& c, int replicas) {
  job::Job job;
  job.model = {.name = "alexnet_small", .classes = 10, .image_size = 17};
  job.data = {.kind = job::DataKind::Generated, .train_samples = c.samples};
  job.batch = c.batch;
  job.seed = 3;
  job.parallel.mode = c.mode;
  job.parallel.replicas = c.kind;
  job.parallel.microbatches = c.microbatches;
  job.parallel.placement = replicas == 1 ? "0:0" : "0:0-" + std::to_string(replicas - 1);
  return job;
}

Plan plan_of(const job::Job& job) { return make_plan(job, model::training_graph(job, job.batch), 1); }

// The samples of global batches [first, last), as loaded by all replicas: batch -> row -> sample.
using Rows = std::map<int64_t, std::map<int64_t, int64_t>>;
Rows loaded(const job::Job& job, int64_t first, int64_t last) {
  const Plan plan = plan_of(job);
  const auto dataset = data::make_dataset(job, data::Split::Train);
  Rows rows;
  for (int r = 0; r < plan.pipeline.num_replicas(0); ++r) {
    data::LoaderOptions options = loader_options(job, plan, 0, r, first);
    options.threads = 2;
    Loader loader(*dataset, options);
    for (int64_t number = options.first_batch; number < last; number += options.stride) {
      const Batch& batch = loader.next();
      EXPECT_EQ(batch.epoch * loader.batches_per_epoch() + batch.index, number);
      size_t next = 0;
      for (const data::RowRange& range : options.ranges) {
        for (int64_t row = range.begin; row < std::min(range.end, batch.rows); ++row) {
          EXPECT_TRUE(rows[number].emplace(row, batch.samples[next++]).second) << "row " << row << " loaded twice";
        }
      }
      EXPECT_EQ(next, batch.samples.size());
    }
  }
  return rows;
}

std::string name_of(const Case& c) {
  return std::to_string(c.samples) + " samples, batch " + std::to_string(c.batch) + ", " + std::to_string(c.replicas) +
         " replicas, " + std::to_string(c.microbatches) + " micro-batches, mode " +
         std::to_string(static_cast<int>(c.mode)) + (c.kind == job::Replicas::Split ? ", split" : ", in turn");
}

TEST(Loading, EverySampleComesOnceAnEpochWhateverTheReplicas) {
  int checked = 0;
  for (const Case& c : cases()) {
    if (c.kind == job::Replicas::Split && c.batch / c.microbatches < c.replicas) continue;  // a replica without a row
    SCOPED_TRACE(name_of(c));
    ++checked;
    const int64_t per_epoch = (c.samples + c.batch - 1) / c.batch;
    const Rows rows = loaded(job_of(c, c.replicas), 0, 3 * per_epoch);
    const Rows alone = loaded(job_of(c, 1), 0, 3 * per_epoch);
    EXPECT_EQ(rows, alone) << "the order depends on the number of replicas";
    std::vector<std::vector<int64_t>> orders(3);
    for (const auto& [number, of_batch] : rows) {
      for (const auto& [row, sample] : of_batch) orders[static_cast<size_t>(number / per_epoch)].push_back(sample);
    }
    for (const auto& order : orders) {
      EXPECT_EQ(order.size(), static_cast<size_t>(c.samples));
      EXPECT_EQ(std::set<int64_t>(order.begin(), order.end()).size(), static_cast<size_t>(c.samples));
    }
    EXPECT_NE(orders[0], orders[1]);
    EXPECT_NE(orders[1], orders[2]);
  }
  EXPECT_GT(checked, 60);
}

TEST(Loading, ACursorContinuesOnAnyNumberOfReplicas) {
  for (const job::Replicas kind : {job::Replicas::Split, job::Replicas::RoundRobin}) {
    const bool in_turn = kind == job::Replicas::RoundRobin;
    const Case c{101, 12, 1, 1, in_turn ? job::Mode::PipeDream : job::Mode::Dp, kind};
    const int64_t last = 20;  // in the third epoch: nine batches each
    const Rows whole = loaded(job_of(c, 1), 0, last);
    for (int before = 1; before <= 5; ++before) {
      for (int after = 1; after <= 5; ++after) {
        const int64_t cursor = 5;  // in the middle of the first
        Rows rows = loaded(job_of(c, before), 0, cursor);
        const Rows rest = loaded(job_of(c, after), cursor, last);
        for (const auto& [number, of_batch] : rest) {
          EXPECT_TRUE(rows.emplace(number, of_batch).second) << "batch " << number << " again";
        }
        EXPECT_EQ(rows, whole) << before << " replicas, then " << after;
      }
    }
  }
}

TEST(Loading, EvaluationTakesEverySampleOnce) {
  for (const Case& c : cases()) {
    if (c.kind == job::Replicas::Split && c.batch / c.microbatches < c.replicas) continue;
    SCOPED_TRACE(name_of(c));
    const job::Job job = job_of(c, c.replicas);
    const Plan plan = plan_of(job);
    const auto dataset = data::make_dataset(job, data::Split::Train);
    std::multiset<int64_t> seen;
    for (int r = 0; r < plan.pipeline.num_replicas(0); ++r) {
      const data::LoaderOptions options = evaluation_options(job, plan, 0, r, c.samples);
      if (options.num_batches == 0) continue;
      Loader loader(*dataset, options);
      for (int64_t i = 0; i < options.num_batches; ++i) {
        const Batch& batch = loader.next();
        EXPECT_EQ(batch.epoch, 0);
        seen.insert(batch.samples.begin(), batch.samples.end());
      }
    }
    EXPECT_EQ(seen.size(), static_cast<size_t>(c.samples));
    EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), static_cast<size_t>(c.samples));
  }
}

}  // namespace
}  // namespace millrace::plan
