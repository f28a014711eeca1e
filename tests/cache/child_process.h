// Parts of a test that need a process of their own: to be limited, killed, or to share a cache.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <functional>

namespace millrace::cache {

constexpr int kSkipped = 77;

inline pid_t start_child(const std::function<int()>& work) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    const int code = work();
    std::fflush(nullptr);
    ::_exit(testing::Test::HasFailure() ? 1 : code);  // its failed expectations are its exit code here
  }
  return child;
}

// The exit code, or 128 and the signal.
inline int end_of(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// A file system of a child's own; not every container lets us have one.
inline bool mount_for_itself(const std::filesystem::path& folder, const char* type, const char* options) {
  if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  return ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("none", folder.c_str(), type, 0, options) == 0;
}

}  // namespace millrace::cache
