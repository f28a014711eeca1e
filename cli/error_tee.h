// Standard error of children, passed on byte by byte as it comes, and read for what they say of a failure.
#pragma once

#include <string>
#include <string_view>

#include "cli/failure_report.h"

namespace millrace::cli {

class ErrorTee {
 public:
  ErrorTee() = default;
  ~ErrorTee() { close(); }
  ErrorTee(const ErrorTee&) = delete;
  ErrorTee& operator=(const ErrorTee&) = delete;

  // Where the next child's standard error goes; to be closed when it has been started. A terminal if ours is one, so
  // that progress is drawn as without a tee.
  int open();
  void close_child_end();
  void close();

  int fd() const { return fd_; }  // readable when there is something to pass on; below 0: nothing more will come
  void pump();                    // what there is, without waiting

  const FailureReport& report() const { return report_; }  // of all lines since open()

  // Lines of our own, never in the middle of a child's.
  void show(std::string_view lines);

 private:
  void read_lines(std::string_view text);
  void write(std::string_view text);

  int fd_ = -1, child_end_ = -1;
  bool is_terminal_ = false;
  bool at_line_start_ = true;  // of what was written
  std::string line_;           // the beginning of one that is not complete yet
  FailureReport report_;
};

}  // namespace millrace::cli
