// Picks the fastest of several kernels for the same work by running them, and remembers the choice: in the
// session, and in a file if one is given. Remembered choices are what makes two runs bit-equal: two algorithms
// round differently, and a measurement alone may fall either way.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "millrace/backend/backend.h"

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
  void remember(const std::string& question, const std::string& algorithm);

  std::string file_;
  std::function<void(const std::string&)> on_measure_;
  std::map<std::string, std::string> chosen_;
};

}  // namespace millrace::backend::cpu
