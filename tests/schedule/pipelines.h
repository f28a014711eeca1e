// Pipelines of many shapes, for tests that hold for all of them.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "millrace/schedule/schedule.h"

namespace millrace::schedule {

struct NamedPipeline {
  std::string name;
  Pipeline pipeline;
};

// Stages with the given numbers of replicas, on workers of their own.
inline Pipeline replicated(job::Mode mode, job::Replicas how, const std::vector<int>& replicas, int microbatches) {
  Pipeline pipeline = chain(mode, static_cast<int>(replicas.size()), microbatches);
  pipeline.replicas = how;
  pipeline.rows = 0;
  pipeline.num_workers = 0;
  for (size_t s = 0; s < replicas.size(); ++s) {
    pipeline.stages[s].clear();
    for (int r = 0; r < replicas[s]; ++r) pipeline.stages[s].push_back(pipeline.num_workers++);
    pipeline.buckets[s] = 1 + static_cast<int>(s) % 3;
    pipeline.rows += replicas[s] + 1;  // uneven shares
  }
  return pipeline;
}

// The same on `num_workers` workers, which stages share in turn.
inline Pipeline shared(Pipeline pipeline, int num_workers) {
  pipeline.num_workers = num_workers;
  int next = 0;
  for (std::vector<int>& workers : pipeline.stages) {
    for (int& worker : workers) worker = next++ % num_workers;
  }
  return pipeline;
}

inline std::vector<NamedPipeline> many_pipelines() {
  using job::Mode;
  using job::Replicas;
  std::vector<std::vector<int>> shapes;
  for (int stages = 1; stages <= 8; ++stages) shapes.emplace_back(stages, 1);
  for (const std::vector<int>& shape :
       {std::vector{2}, {4}, {7, 1}, {1, 7}, {3, 2}, {2, 3}, {2, 2}, {1, 2, 1}, {2, 1, 2}, {3, 1, 2}, {4, 2, 1}}) {
    shapes.push_back(shape);
  }
  std::vector<NamedPipeline> all;
  for (const Mode mode : {Mode::Dp, Mode::GPipe, Mode::OneFOneB, Mode::PipeDream, Mode::Ssp}) {
    for (const Replicas how : {Replicas::Split, Replicas::RoundRobin}) {
      for (const std::vector<int>& shape : shapes) {
        if (mode == Mode::Dp && shape.size() > 1) continue;
        const bool synchronous = mode != Mode::PipeDream && mode != Mode::Ssp;
        for (const int microbatches : {1, 2, 3, 5, 8}) {
          if (!synchronous && microbatches > 1) continue;
          int most = 1, workers = 0;
          std::string name =
              fmt::format("mode {} {}", static_cast<int>(mode), how == Replicas::Split ? "split" : "in turn");
          for (const int replicas : shape) {
            most = std::max(most, replicas);
            workers += replicas;
            name += fmt::format(" {}", replicas);
          }
          // In turn, every replica must have a micro-batch in every update.
          if (how == Replicas::RoundRobin && (most == 1 || (synchronous && microbatches < most))) continue;
          name += fmt::format(" micro-batches {}", microbatches);
          const Pipeline pipeline = replicated(mode, how, shape, microbatches);
          all.push_back({name, pipeline});
          all.push_back({name + " single buffer", pipeline});
          all.back().pipeline.multi_buffer = false;
          all.push_back({name + " without statistics, none ahead", pipeline});
          all.back().pipeline.statistics.assign(shape.size(), false);
          all.back().pipeline.ahead.assign(shape.size(), 0);
          for (const int frozen : {1, static_cast<int>(shape.size()) - 1}) {
            if (!synchronous || frozen < 1 || frozen >= static_cast<int>(shape.size())) continue;
            all.push_back({fmt::format("{}, {} frozen", name, frozen), pipeline});
            all.back().pipeline.frozen = frozen;
          }
          for (const int num_workers : {most, most + 1}) {
            if (num_workers < workers) {
              all.push_back({fmt::format("{} on {} workers", name, num_workers), shared(pipeline, num_workers)});
            }
          }
        }
      }
    }
  }
  return all;
}

}  // namespace millrace::schedule
