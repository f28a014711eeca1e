// A worker's part in checkpoints, and what it tells of its gradients.
#include <algorithm>
#include <utility>

#include "millrace/plan/freeze_rule.h"
#include "millrace/plan/saving.h"
#include "millrace/runtime/worker.h"

namespace millrace::runtime {

// Decided beside all stages: what they need comes first.
void Worker::plan_snapshot(size_t memory_limit) {
  size_t bytes = 0;
  for (const Stage& stage : stages_) {
    if (plan::copies_on_device(facts_.job, stage.replica)) bytes += stage.session->state_bytes();
  }
  if (memory_limit == 0 || planned_bytes() + bytes <= memory_limit) snapshot_bytes_ = bytes;
}

void Worker::prepare_saving(bool ahead, const Saver::OnSaved& on_saved) {
  std::vector<Saver::Part> parts;
  for (const Stage& stage : stages_) {
    if (stage.replica > 0) continue;
    Saver::Part& part = parts.emplace_back(Saver::Part{stage.stage, stage.session.get(), {}});
    if (!facts_.plan.shares_params) continue;
    // A parameter that several stages have is the first one's to write.
    part.owns = [this, &stage](const std::string& name) {
      const graph::OpId begin = facts_.plan.slice(stage.stage).begin();
      return std::none_of(stage.graph.ops.begin(), stage.graph.ops.begin() + begin, [&](const graph::Op& op) {
        return std::any_of(op.params.begin(), op.params.end(),
                           [&](graph::ParamId param) { return stage.graph.params[param].name == name; });
      });
    };
  }
  save_wait_s_ = save_wait_s();
  saver_.reset();
  if (parts.empty()) return;
  const Saver::Options options{.ahead = ahead, .copies = ahead && snapshot_bytes_ > 0};
  saver_ = std::make_unique<Saver>(backend_, std::move(parts), options, on_saved);
}

double Worker::save_wait_s() const { return save_wait_s_ + (saver_ ? saver_->copy_s() : 0); }

void Worker::save(int64_t step, const std::filesystem::path& directory) {
  if (!saver_) return;
  const int64_t begin = Timeline::now_ns();
  saver_->save(step, directory);
  copying_ = true;
  save_wait_s_ += static_cast<double>(Timeline::now_ns() - begin) * 1e-9;
}

void Worker::await_copy() {
  const int64_t begin = Timeline::now_ns();
  saver_->await_copy();
  copying_ = false;
  save_wait_s_ += static_cast<double>(Timeline::now_ns() - begin) * 1e-9;
}

std::vector<double> Worker::take_layer_squares() {
  std::vector<double> squares;
  for (Stage& stage : stages_) {
    if (!stage.session->watches()) continue;
    const std::vector<float> of_params = stage.session->watched();  // every stage has those of all
    squares = plan::layer_squares(stage.graph, of_params);
    stage.session->put_watched(std::vector<float>(of_params.size(), 0.0f));
  }
  return squares;
}

}  // namespace millrace::runtime
