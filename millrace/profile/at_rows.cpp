// A profile for any number of samples, from those that were measured.
#include <algorithm>
#include <cmath>

#include "millrace/base/error.h"
#include "millrace/profile/profile.h"

namespace millrace::profile {
namespace {

// A line through what was measured at two sizes; through nothing where there is one.
class Line {
 public:
  Line(double rows_a, double rows_b, double rows) : rows_a_(rows_a), rows_b_(rows_b), rows_(rows) {}

  double at(double a, double b) const {
    if (rows_a_ == rows_b_) return a * rows_ / rows_a_;
    const double value = a + (b - a) * (rows_ - rows_a_) / (rows_b_ - rows_a_);
    // Outside of what was measured: never less than in proportion to the nearer of the two.
    if (rows_ < rows_a_) return std::max(value, a * rows_ / rows_a_);
    return std::max(value, std::min(a, b));
  }
  Seconds at(const Seconds& a, const Seconds& b) const { return {at(a.median, b.median), at(a.spread, b.spread)}; }
  int64_t at(int64_t a, int64_t b) const { return std::llround(at(static_cast<double>(a), static_cast<double>(b))); }

 private:
  double rows_a_, rows_b_, rows_;
};

void check_alike(const Profile& a, const Profile& b) {
  const auto differs = [&](const std::string& how) {
    fail_input("the profiles of {} and {} samples are not of one model: {}", a.rows, b.rows, how);
  };
  if (a.operators.size() != b.operators.size()) {
    differs(std::to_string(a.operators.size()) + " and " + std::to_string(b.operators.size()) + " operators");
  }
  for (size_t i = 0; i < a.operators.size(); ++i) {
    if (a.operators[i].name != b.operators[i].name) differs(a.operators[i].name + " and " + b.operators[i].name);
  }
}

}  // namespace

Profile at_rows(const std::vector<Profile>& measured, int64_t rows) {
  if (measured.empty()) fail_input("no profile was given");
  std::vector<const Profile*> by_rows;
  for (const Profile& profile : measured) {
    if (profile.rows < 1) fail_input("a profile does not say how many samples it was measured with");
    check_alike(measured[0], profile);
    by_rows.push_back(&profile);
  }
  std::sort(by_rows.begin(), by_rows.end(), [](const Profile* a, const Profile* b) { return a->rows < b->rows; });
  for (const Profile* profile : by_rows) {
    if (profile->rows == rows) return *profile;
  }
  size_t above = 1;
  while (above + 1 < by_rows.size() && by_rows[above]->rows < rows) ++above;
  const Profile& b = *by_rows[std::min(above, by_rows.size() - 1)];
  const Profile& a = by_rows.size() > 1 ? *by_rows[above - 1] : b;
  const Line line(static_cast<double>(a.rows), static_cast<double>(b.rows), static_cast<double>(rows));
  Profile made = rows - a.rows < b.rows - rows ? a : b;
  for (size_t i = 0; i < made.operators.size(); ++i) {
    const Operator &from = a.operators[i], &to = b.operators[i];
    Operator& op = made.operators[i];
    op.forward = line.at(from.forward, to.forward);
    op.input_grad = line.at(from.input_grad, to.input_grad);
    op.weight_grad = line.at(from.weight_grad, to.weight_grad);
    for (size_t pass = 0; pass < op.workspace_bytes.size(); ++pass) {
      op.workspace_bytes[pass] = line.at(from.workspace_bytes[pass], to.workspace_bytes[pass]);
    }
    op.output_bytes = op.output_bytes * rows / made.rows;
    op.kept_bytes = op.kept_bytes * rows / made.rows;
  }
  made.input_bytes = made.input_bytes * rows / made.rows;
  made.step_s = line.at(a.step_s, b.step_s);
  made.rows = rows;
  return made;
}

}  // namespace millrace::profile
