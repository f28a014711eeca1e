// How things fail: the caller's mistake is std::invalid_argument (exit code 2), the world's failure is
// std::runtime_error (exit code 1). Both carry one line that says what, where, the numbers, and what to
// write instead.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

namespace millrace {

template <typename... Args>
[[noreturn]] void fail_input(fmt::format_string<Args...> format, Args&&... args) {
  throw std::invalid_argument(fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
[[noreturn]] void fail_run(fmt::format_string<Args...> format, Args&&... args) {
  throw std::runtime_error(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace millrace
