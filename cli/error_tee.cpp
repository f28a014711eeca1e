#include "cli/error_tee.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>

#include "millrace/base/error.h"

namespace millrace::cli {
namespace {

constexpr size_t kLongestLine = 4096;  // of which we take note

// Both ends, -1 where there are none left.
struct Terminal {
  int master = -1, end = -1;
};

Terminal open_terminal() {
  Terminal terminal;
  terminal.master = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  std::array<char, 128> name{};
  if (terminal.master < 0 || ::grantpt(terminal.master) != 0 || ::unlockpt(terminal.master) != 0 ||
      ::ptsname_r(terminal.master, name.data(), name.size()) != 0) {
    return terminal;
  }
  terminal.end = ::open(name.data(), O_RDWR | O_NOCTTY | O_CLOEXEC);
  termios settings{};
  if (terminal.end >= 0 && ::tcgetattr(terminal.end, &settings) == 0) {
    ::cfmakeraw(&settings);  // bytes as they are: the terminal that shows them translates ends of lines
    ::tcsetattr(terminal.end, TCSANOW, &settings);
  }
  return terminal;
}

void copy_window_size(int from, int to) {
  winsize size{};
  if (::ioctl(from, TIOCGWINSZ, &size) == 0) ::ioctl(to, TIOCSWINSZ, &size);
}

// Progress clears its line before another is written there.
std::string_view without_escapes(std::string_view line) {
  while (line.starts_with("\x1b[")) {
    size_t end = 2;
    while (end < line.size() && std::isalpha(static_cast<unsigned char>(line[end])) == 0) ++end;
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return line;
}

}  // namespace

int ErrorTee::open() {
  close();
  report_ = {};
  line_.clear();
  is_terminal_ = ::isatty(STDERR_FILENO) == 1;
  if (is_terminal_) {
    const Terminal terminal = open_terminal();
    fd_ = terminal.master;
    child_end_ = terminal.end;
    if (child_end_ >= 0) {
      copy_window_size(STDERR_FILENO, child_end_);
    } else {
      close();
      is_terminal_ = false;
    }
  }
  int ends[2] = {-1, -1};
  if (!is_terminal_) {
    if (::pipe2(ends, O_CLOEXEC) != 0) fail_run("a pipe cannot be made: {}", std::strerror(errno));
    fd_ = ends[0];
    child_end_ = ends[1];
  }
  ::fcntl(fd_, F_SETFL, O_RDWR | O_NONBLOCK);  // this end only; access modes are ignored
  return child_end_;
}

void ErrorTee::close_child_end() {
  if (child_end_ >= 0) ::close(child_end_);
  child_end_ = -1;
}

void ErrorTee::close() {
  if (!line_.empty()) read_lines("\n");  // the last one may have no end
  close_child_end();
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void ErrorTee::pump() {
  if (fd_ < 0) return;
  if (is_terminal_) copy_window_size(STDERR_FILENO, fd_);
  std::array<char, 16384> piece;
  // At most so much at a time, lest a child that never stops writing keeps us from everything else.
  for (int i = 0; i < 64; ++i) {
    const ssize_t count = ::read(fd_, piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) {  // a terminal whose other end is closed by all fails
      close();
      return;
    }
    const std::string_view text(piece.data(), static_cast<size_t>(count));
    write(text);
    read_lines(text);
  }
}

void ErrorTee::read_lines(std::string_view text) {
  while (!text.empty()) {
    const size_t end = text.find_first_of("\r\n");
    const std::string_view part = text.substr(0, end);
    line_ += part.substr(0, kLongestLine - std::min(line_.size(), kLongestLine));
    if (end == std::string_view::npos) return;
    report_.read(without_escapes(line_));
    line_.clear();
    text.remove_prefix(end + 1);
  }
}

void ErrorTee::write(std::string_view text) {
  if (text.empty()) return;
  at_line_start_ = text.back() == '\n';
  while (!text.empty()) {
    const ssize_t count = ::write(STDERR_FILENO, text.data(), text.size());
    if (count >= 0) {
      text.remove_prefix(static_cast<size_t>(count));
    } else if (errno == EAGAIN) {
      pollfd room{STDERR_FILENO, POLLOUT, 0};
      ::poll(&room, 1, -1);
    } else if (errno != EINTR) {
      return;  // nobody reads it; the training goes on
    }
  }
}

void ErrorTee::show(std::string_view lines) {
  if (!at_line_start_) write("\n");
  write(lines);
}

}  // namespace millrace::cli
