#include "millrace/job/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace millrace::job {
namespace {

int64_t warmup_steps(const Schedule& schedule, double steps_per_epoch) {
  if (schedule.warmup_steps > 0) return schedule.warmup_steps;
  return std::llround(schedule.warmup_epochs * steps_per_epoch);
}

// Milestones are whole epochs as users write them, but an epoch need not be a whole number of steps: the first
// step that begins at or after the milestone is the first with the lower rate.
int milestones_passed(const Schedule& schedule, int64_t step, double steps_per_epoch) {
  constexpr double kRounding = 1e-9;
  int passed = 0;
  for (double epoch : schedule.milestones) {
    const double milestone = epoch * steps_per_epoch;
    if (static_cast<double>(step) >= milestone - kRounding * std::max(1.0, milestone)) ++passed;
  }
  return passed;
}

}  // namespace

double learning_rate(const Optimizer& optimizer, const Schedule& schedule, int64_t step, double steps_per_epoch,
                     int64_t total_steps) {
  const int64_t warmup = warmup_steps(schedule, steps_per_epoch);
  if (step < warmup) return optimizer.lr * static_cast<double>(step + 1) / static_cast<double>(warmup);

  // From 0 at the first step after warm-up towards 1 at the step after the last.
  const int64_t remaining = total_steps - warmup;
  const double progress =
      remaining <= 0 ? 0.0 : std::min(1.0, static_cast<double>(step - warmup) / static_cast<double>(remaining));
  const double fall = optimizer.lr - schedule.end_lr;
  switch (schedule.kind) {
    case Decay::Constant: return optimizer.lr;
    case Decay::Step:
      return optimizer.lr * std::pow(schedule.gamma, milestones_passed(schedule, step, steps_per_epoch));
    case Decay::Cosine: return schedule.end_lr + fall * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
    case Decay::Linear: return schedule.end_lr + fall * (1.0 - progress);
    case Decay::Polynomial: return schedule.end_lr + fall * std::pow(1.0 - progress, schedule.power);
  }
  return optimizer.lr;
}

}  // namespace millrace::job
