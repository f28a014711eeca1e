// What a data set makes of a model's outputs beyond loss and accuracy: exact match and F1 of answers. A few numbers are
// kept of each sample, by whichever worker computed it; figures are made of those of all samples.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace millrace::data {

class Scorer {
 public:
  virtual ~Scorer() = default;

  virtual int numbers_per_sample() const = 0;

  // Writes the numbers of one sample, from its logits as the graph has them. Safe to call from several threads. The
  // numbers are exact as floats, and zeros stand for a sample that was not scored: workers' numbers may be summed.
  virtual void score(int64_t sample, std::span<const float> logits, std::span<float> numbers) const = 0;

  // Figures by name, four at most; `numbers` are those of all samples, in their order.
  virtual std::vector<std::string> names() const = 0;
  virtual std::vector<double> figures(std::span<const float> numbers) const = 0;

  // What was predicted, as JSON in the form the data set's own evaluation reads; empty where there is none.
  virtual std::string predictions_json(std::span<const float> /*numbers*/) const { return {}; }
};

}  // namespace millrace::data
