// A worker's part in checkpoints.
#include <algorithm>
#include <utility>

#include "millrace/runtime/worker.h"

namespace millrace::runtime {

void Worker::prepare_saving(bool ahead, const Saver::OnSaved& on_saved) {
  std::vector<Saver::Part> parts;
  for (const Stage& stage : stages_) {
    if (stage.replica > 0) continue;
    Saver::Part& part = parts.emplace_back(Saver::Part{stage.stage, stage.session.get(), {}});
    if (facts_.plan.ties.empty()) continue;
    // A parameter that several stages have is the first one's to write.
    part.owns = [this, number = stage.stage](const std::string& name) {
      return std::none_of(facts_.plan.ties.begin(), facts_.plan.ties.end(), [&](const plan::Tie& tie) {
        return stages_[0].graph.params[tie.param].name == name && tie.stages.front() < number;
      });
    };
  }
  saver_.reset();
  if (!parts.empty()) saver_ = std::make_unique<Saver>(std::move(parts), backend_.on_host(), ahead, on_saved);
}

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

}  // namespace millrace::runtime
