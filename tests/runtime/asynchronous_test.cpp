// Asynchronous modes follow their rule exactly. The rule is stated again here, in one process and without a schedule:
// the gradient of minibatch t is taken at the weights each stage promises for t, and a stage's update u applies the
// gradients of its minibatches to its newest weights.
#include <algorithm>
#include <cstring>

#include "millrace/backend/reference/reference_backend.h"
#include "millrace/data/loader.h"
#include "millrace/graph/fuse.h"
#include "millrace/model/model.h"
#include "runtime/training_harness.h"

namespace millrace::runtime {
namespace {

using job::Mode;
using job::Replicas;

struct Rule {
  std::vector<int> replicas;  // that take minibatches in turn; 1 where a batch is split or not replicated
  std::vector<int> versions;
  int64_t version(int stage, int64_t minibatch) const {
    return std::max<int64_t>(0, minibatch / replicas[stage] - (versions[stage] - 1));
  }
};

using Tensors = std::map<std::string, std::vector<float>>;

class Restatement {
 public:
  Restatement(const job::Job& job, const plan::Plan& plan, const Rule& rule)
      : job_(job),
        rule_(rule),
        graph_(graph::fuse(model::build(job.model, job.batch, job.loss.label_smoothing))),
        backend_(backend::make_reference_backend({.momentum = 0.5F})),
        session_(graph_, *backend_, {.evaluates = false, .seed = job.seed}),
        data_(data::make_dataset(job, data::Split::Train)),
        loader_(*data_, {.batch = job.batch, .seed = job.seed}) {
    for (int s = 0; s < plan.pipeline.num_stages(); ++s) {
      const graph::StageSlice slice = plan.slice(s);
      for (graph::OpId op = slice.begin(); op < slice.end(graph_); ++op) {
        for (graph::ParamId param : graph_.ops[op].params) stage_of_[graph_.params[param].name] = s;
      }
    }
    const state::State first = state::initial_state(graph_, job.seed);
    history_.resize(plan.pipeline.num_stages());
    for (auto& versions : history_) versions.emplace_back();
    for (const auto& [name, tensor] : first.params) history_[stage_of_.at(name)][0][name] = tensor.data;
    shapes_ = first.params;
    sums_.resize(history_.size());
  }

  state::State run(int64_t steps) {
    for (int64_t t = 0; t < steps; ++t) step(t, steps);
    state::State state;
    for (const auto& versions : history_) {
      for (const auto& [name, values] : versions.back()) state.params[name] = {shapes_.at(name).shape, values};
    }
    return state;
  }

 private:
  void step(int64_t t, int64_t steps) {
    const auto [gradients, rows] = gradients_at(t);
    for (size_t s = 0; s < history_.size(); ++s) {
      const int64_t group = rule_.replicas[s];
      const int64_t first = t / group * group, last = std::min(first + group, steps);
      double rows_of_group = 0;
      for (int64_t m = first; m < last; ++m) rows_of_group += static_cast<double>(rows_of(m));
      const auto share = static_cast<float>(static_cast<double>(rows) / rows_of_group);
      for (const auto& [name, gradient] : gradients) {
        if (stage_of_.at(name) != static_cast<int>(s)) continue;
        std::vector<float>& sum = sums_[s][name];
        if (t == first) sum.assign(gradient.size(), 0.0F);
        for (size_t i = 0; i < gradient.size(); ++i) sum[i] += group > 1 ? gradient[i] * share : gradient[i];
      }
      if (t + 1 == last) update(static_cast<int>(s));
    }
  }

  int64_t rows_of(int64_t t) const {
    const int64_t per_epoch = (data_->size() + job_.batch - 1) / job_.batch;
    return std::min(job_.batch, data_->size() - t % per_epoch * job_.batch);
  }

  // At the weights of the versions that minibatch t reads: what one step from zero velocity leaves in the velocity.
  std::pair<Tensors, int64_t> gradients_at(int64_t t) {
    state::State state;
    for (const auto& [name, stage] : stage_of_) {
      state.params[name] = {shapes_.at(name).shape, history_[stage][rule_.version(stage, t)].at(name)};
      state.velocity[name] = {shapes_.at(name).shape, std::vector<float>(state.params[name].data.size(), 0.0F)};
    }
    session_.load(state);
    const data::Batch& batch = loader_.next();
    session_.train_step(t, batch.rows, 0.0, [&](int) {
      std::memcpy(session_.features(), batch.features.data(), batch.features.size());
      std::copy(batch.labels.begin(), batch.labels.end(), session_.labels());
      return batch.rows;
    });
    state::State after;
    session_.store(after);
    Tensors gradients;
    for (const auto& [name, tensor] : after.velocity) gradients[name] = tensor.data;
    return {gradients, batch.rows};
  }

  void update(int stage) {
    const auto rate = static_cast<float>(job_.optimizer.lr * rule_.replicas[stage] / rule_.replicas[0]);
    const auto momentum = static_cast<float>(job_.optimizer.momentum);
    const auto decay = static_cast<float>(job_.optimizer.weight_decay);
    Tensors next = history_[stage].back();
    for (auto& [name, weights] : next) {
      std::vector<float>& velocity = velocity_[name];
      velocity.resize(weights.size(), 0.0F);
      const std::vector<float>& gradient = sums_[stage].at(name);
      for (size_t i = 0; i < weights.size(); ++i) {
        float direction = gradient[i];
        direction += decay * weights[i];
        velocity[i] = momentum * velocity[i] + direction;
        weights[i] = weights[i] - rate * velocity[i];
      }
    }
    history_[stage].push_back(std::move(next));
  }

  const job::Job job_;
  const Rule rule_;
  graph::Graph graph_;
  std::unique_ptr<backend::Backend> backend_;
  Session session_;
  std::unique_ptr<data::Dataset> data_;
  data::Loader loader_;
  std::map<std::string, int> stage_of_;
  std::map<std::string, state::Tensor> shapes_;
  std::vector<std::vector<Tensors>> history_;  // per stage and version
  std::vector<Tensors> sums_;                  // per stage
  Tensors velocity_;
};

job::Job asynchronous_job(Mode mode, const std::string& placement) {
  job::Job job = small_job();
  job.steps = 11;
  job.parallel.mode = mode;
  job.parallel.placement = placement;
  return job;
}

plan::Plan plan_of(const job::Job& job) {
  return plan::make_plan(job, graph::fuse(model::build(job.model, job.batch, 0)), 1);
}

Rule rule_of(const plan::Plan& plan) {
  Rule rule;
  rule.versions = plan.pipeline.versions;
  for (int s = 0; s < plan.pipeline.num_stages(); ++s) {
    rule.replicas.push_back(plan.pipeline.replicas == Replicas::RoundRobin ? plan.pipeline.num_replicas(s) : 1);
  }
  return rule;
}

void expect_versions_as_promised(const RunResult& run, const Rule& rule, int64_t steps, int copies) {
  EXPECT_EQ(run.versions.size(), static_cast<size_t>(steps) * copies);
  for (const VersionUse& use : run.versions) {
    EXPECT_EQ(use.forward, rule.version(use.stage, use.minibatch)) << use.stage << " " << use.minibatch;
    EXPECT_EQ(use.backward, use.forward) << use.stage << " " << use.minibatch;
  }
}

TEST(Asynchronous, AnyDepthGivesTheBitsOfTheRule) {
  for (int stages = 1; stages <= 8; ++stages) {
    const job::Job job = asynchronous_job(Mode::Ssp, straight(stages));
    const plan::Plan plan = plan_of(job);
    for (int s = 0; s < stages; ++s) EXPECT_EQ(plan.pipeline.versions[s], stages - s);
    const RunResult many = run(job);
    expect_versions_as_promised(many, rule_of(plan), job.steps, stages);
    EXPECT_TRUE(many.state.params == Restatement(job, plan, rule_of(plan)).run(job.steps).params) << stages;
    // Without replicas PipeDream's rule is the same.
    const RunResult pipedream = run(asynchronous_job(Mode::PipeDream, straight(stages)));
    expect_versions_as_promised(pipedream, rule_of(plan), job.steps, stages);
    EXPECT_TRUE(pipedream.state == many.state) << stages;
  }
}

TEST(Asynchronous, VersionsCanBeSetPerStage) {
  for (const std::vector<int>& versions : std::vector<std::vector<int>>{{1, 1, 1}, {4, 1, 2}, {1, 3, 1}, {2, 5, 3}}) {
    job::Job job = asynchronous_job(Mode::Ssp, straight(3));
    job.parallel.versions = versions;
    const plan::Plan plan = plan_of(job);
    const RunResult many = run(job);
    expect_versions_as_promised(many, rule_of(plan), job.steps, 3);
    EXPECT_TRUE(many.state.params == Restatement(job, plan, rule_of(plan)).run(job.steps).params);
  }
}

TEST(Asynchronous, HowFarForwardsRunAheadChangesNothing) {
  for (const char* placement : {"0:0.0:1.0:2", "0:0-1.0:2", "0:0-2.0:0.0:1-2"}) {
    job::Job job = asynchronous_job(Mode::Ssp, placement);
    const RunResult ahead = run(job);
    const size_t stages = plan_of(job).pipeline.stages.size();
    job.parallel.ahead.assign(stages, 0);
    EXPECT_TRUE(run(job).state == ahead.state) << placement;
    job.parallel.static_scheduling = false;
    EXPECT_TRUE(run(job).state == ahead.state) << placement;
  }
}

TEST(Asynchronous, DrainingForEvaluationChangesNothing) {
  job::Job job = asynchronous_job(Mode::Ssp, straight(3));
  const RunResult whole = run(job);
  job.data.test_samples = 9;
  job.eval.every_epochs = 0.5;
  const RunResult drained = run(job);
  ASSERT_TRUE(drained.result.evaluation);
  EXPECT_TRUE(drained.state == whole.state);
  EXPECT_EQ(drained.losses, whole.losses);
}

TEST(Asynchronous, WithoutMultiBufferingTheBitsAreTheSame) {
  job::Job job = asynchronous_job(Mode::PipeDream, straight(4));
  const RunResult buffered = run(job);
  job.parallel.multi_buffer = false;
  EXPECT_TRUE(run(job).state == buffered.state);
}

TEST(Asynchronous, AnOrderThatFollowsArrivalsGivesTheSameBits) {
  for (const char* placement : {"0:0.0:1.0:2.0:3", "0:0-1.0:2", "0:0.0:1.0:0"}) {
    for (Mode mode : {Mode::Ssp, Mode::OneFOneB}) {
      job::Job job = asynchronous_job(mode, placement);
      if (mode == Mode::OneFOneB) job.parallel.microbatches = 4;
      const RunResult in_order = run(job);
      job.parallel.static_scheduling = false;
      EXPECT_TRUE(run(job).state == in_order.state) << placement << ", mode " << static_cast<int>(mode);
    }
  }
}

TEST(Asynchronous, ReplicasThatSplitABatchFollowTheRule) {
  for (const char* placement : {"0:0-1.0:2", "0:0-2.0:3-4", "0:0-1.0:0-1", "0:0.0:1-2"}) {
    const job::Job job = asynchronous_job(Mode::Ssp, placement);
    const plan::Plan plan = plan_of(job);
    const RunResult many = run(job);
    const int copies = plan.pipeline.num_replicas(0) + plan.pipeline.num_replicas(1);
    expect_versions_as_promised(many, rule_of(plan), job.steps, copies);
    EXPECT_LE(largest_difference(many.state, Restatement(job, plan, rule_of(plan)).run(job.steps)), 1e-6) << placement;
  }
}

TEST(Asynchronous, ReplicasThatTakeMinibatchesInTurnFollowTheRule) {
  for (const char* placement : {"0:0-1.0:2", "0:0-2.0:3", "0:0-2.0:3-4", "0:0.0:1-2"}) {
    for (int64_t steps : {12, 7}) {  // the last updates may lack a minibatch
      job::Job job = asynchronous_job(Mode::PipeDream, placement);
      job.parallel.replicas = Replicas::RoundRobin;
      job.steps = steps;
      const plan::Plan plan = plan_of(job);
      const RunResult many = run(job);
      expect_versions_as_promised(many, rule_of(plan), steps, 2);
      EXPECT_EQ(many.losses.size(), static_cast<size_t>(steps));
      EXPECT_LE(largest_difference(many.state, Restatement(job, plan, rule_of(plan)).run(steps)), 1e-6)
          << placement << ", " << steps << " steps";
    }
  }
}

TEST(Asynchronous, EverySampleComesOnceAnEpoch) {
  for (int64_t samples : {7, 31}) {
    for (const char* placement : {"0:0.0:1", "0:0-2.0:3", "0:0-1.0:2-4"}) {
      for (auto [mode, replicas] :
           {std::pair(Mode::PipeDream, Replicas::RoundRobin), std::pair(Mode::Ssp, Replicas::Split),
            std::pair(Mode::PipeDream, Replicas::Split)}) {
        job::Job job = asynchronous_job(mode, placement);
        job.parallel.replicas = replicas;
        job.steps = 0;
        job.epochs = 2;
        job.data.train_samples = samples;
        const RunResult many = run(job);
        EXPECT_EQ(many.seen.size(), static_cast<size_t>(samples)) << placement;
        for (const auto& [sample, times] : many.seen) EXPECT_EQ(times, 2) << "sample " << sample << ", " << placement;
      }
    }
  }
}

}  // namespace
}  // namespace millrace::runtime
