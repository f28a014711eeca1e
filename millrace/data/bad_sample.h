// A sample that cannot be used as it is: a broken record, a picture that does not decode, a label out of range.
// Stops the run, or - with data.on_error: skip - is counted and left out.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

namespace millrace::data {

class BadSample : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

template <typename... Args>
[[noreturn]] void fail_sample(fmt::format_string<Args...> format, Args&&... args) {
  throw BadSample(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace millrace::data
