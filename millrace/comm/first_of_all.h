// What several processes say of one thing they all did: a failure, a host that is left out.
#pragma once

#include <string>

#include "millrace/comm/process.h"

namespace millrace::comm {

// Together with all other processes: the first text that is not empty, by rank, told to everyone.
inline std::string first_of_all(Process& process, const std::string& own) {
  std::string first;
  for (const std::string& text : process.gather(own)) {
    if (first.empty()) first = text;
  }
  return process.broadcast(first);
}

}  // namespace millrace::comm
