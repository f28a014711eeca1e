// Picks the fastest of several kernels for the same work by running them, and remembers the choice.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "millrace/backend/backend.h"
#include "millrace/backend/choices.h"

namespace millrace::backend::cpu {

class Chooser {
 public:
  Chooser(std::string file, std::function<void(const std::string& work)> on_measure);

  struct OperandBytes {
    std::vector<size_t> reads, writes;
  };
  // `work` names the work completely: kind, pass, shapes, attributes and threads.
  Kernel choose(const std::string& work, std::vector<Kernel> candidates, const OperandBytes& bytes);

 private:
  Choices choices_;
  std::function<void(const std::string&)> on_measure_;
};

}  // namespace millrace::backend::cpu
