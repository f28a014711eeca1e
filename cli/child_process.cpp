#include "cli/child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <thread>

#include "millrace/base/error.h"

namespace millrace::cli {
namespace {

using namespace std::chrono_literals;

constexpr auto kLongestDeath = 10s;  // of a killed process: the kernel frees what it had

struct Relation {
  pid_t pid = 0, parent = 0;
};

// All processes of this machine; those that end meanwhile are left out.
std::vector<Relation> all_processes() {
  std::vector<Relation> all;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename();
    Relation process;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), process.pid);
    if (parsed.ec != std::errc() || parsed.ptr != name.data() + name.size()) continue;
    std::ifstream in(entry->path() / "stat");
    std::string stat;
    std::getline(in, stat);
    const size_t after_name = stat.rfind(')');  // the name may hold anything
    if (after_name == std::string::npos) continue;
    std::istringstream rest(stat.substr(after_name + 1));
    char state = 0;
    if (rest >> state >> process.parent) all.push_back(process);
  }
  return all;
}

std::vector<pid_t> children_of(const std::vector<Relation>& all, pid_t parent) {
  std::vector<pid_t> children;
  for (const Relation& process : all) {
    if (process.parent == parent) children.push_back(process.pid);
  }
  return children;
}

std::vector<pid_t> descendants_of(pid_t ancestor) {
  const std::vector<Relation> all = all_processes();
  std::vector<pid_t> found = children_of(all, ancestor);
  for (size_t i = 0; i < found.size(); ++i) {
    const std::vector<pid_t> children = children_of(all, found[i]);
    found.insert(found.end(), children.begin(), children.end());
  }
  return found;
}

// What the child does between fork and exec, where only system calls are safe. Returns only if it fails.
void become(char* const* command, int out, int err, int nowhere, pid_t parent, const sigset_t& mask) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(1);  // it died before it could be watched
  // The group is not in the terminal's foreground; where writing there then stops a process it shall not.
  ::signal(SIGTTOU, SIG_IGN);
  if (::dup2(nowhere, STDIN_FILENO) < 0) return;
  if (out != STDOUT_FILENO && ::dup2(out < 0 ? nowhere : out, STDOUT_FILENO) < 0) return;
  if (err != STDERR_FILENO && ::dup2(err < 0 ? nowhere : err, STDERR_FILENO) < 0) return;
  ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  ::execvp(command[0], command);
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& command, int out, int err, const sigset_t& mask) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const int nowhere = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  int told[2] = {-1, -1};  // closed by a successful exec, otherwise tells why not
  if (nowhere < 0 || ::pipe2(told, O_CLOEXEC) != 0) {
    const int error = errno;
    if (nowhere >= 0) ::close(nowhere);
    fail_run("{}: cannot be started: {}", command[0], std::strerror(error));
  }
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) {
    become(words.data(), out, err, nowhere, parent, mask);
    const int error = errno;
    [[maybe_unused]] const ssize_t written = ::write(told[1], &error, sizeof error);
    ::_exit(127);
  }
  int error = pid_ < 0 ? errno : 0;
  if (pid_ > 0) ::setpgid(pid_, pid_);  // both do, so that it holds for whoever comes first
  ::close(told[1]);
  ::close(nowhere);
  const bool forked = pid_ > 0;
  if (forked) {
    while (::read(told[0], &error, sizeof error) < 0 && errno == EINTR) {
    }
  }
  ::close(told[0]);
  if (!forked) fail_run("{}: cannot be started: {}", command[0], std::strerror(error));
  if (error != 0) {
    ::waitpid(pid_, nullptr, 0);
    fail_input("{}: cannot be started: {}", command[0], std::strerror(error));
  }
}

ChildProcess::~ChildProcess() {
  if (end_) return;
  kill_all();
  ::waitpid(pid_, nullptr, 0);
}

void ChildProcess::send(int signal) const {
  if (!end_) ::kill(pid_, signal);
}

void ChildProcess::ask_to_end() const {
  if (end_) return;
  ::kill(-pid_, SIGTERM);
  ::kill(-pid_, SIGCONT);
}

void ChildProcess::kill_all() const {
  if (end_) return;
  const std::vector<pid_t> descendants = descendants_of(pid_);
  ::kill(-pid_, SIGKILL);
  for (const pid_t pid : descendants) ::kill(pid, SIGKILL);
}

std::optional<ChildEnd> ChildProcess::poll() {
  while (!end_) {
    siginfo_t info{};
    // Not yet taken from the table: as long as its number is in use, its group's cannot be another's.
    if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WSTOPPED | WCONTINUED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0) {
      return std::nullopt;
    }
    const bool ended = info.si_code == CLD_EXITED || info.si_code == CLD_KILLED || info.si_code == CLD_DUMPED;
    if (ended) ::kill(-pid_, SIGKILL);
    ::waitid(P_PID, static_cast<id_t>(pid_), &info, (ended ? WEXITED : WSTOPPED | WCONTINUED) | WNOHANG);
    stopped_ = !ended && info.si_code == CLD_STOPPED;
    if (!ended) continue;
    end_ = info.si_code == CLD_EXITED ? ChildEnd{.exit_code = info.si_status} : ChildEnd{.signal = info.si_status};
  }
  return end_;
}

Orphans::Orphans() : before_(children_of(all_processes(), ::getpid())) {
  ::prctl(PR_GET_CHILD_SUBREAPER, &adopted_before_);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Orphans::~Orphans() { ::prctl(PR_SET_CHILD_SUBREAPER, adopted_before_); }

std::vector<pid_t> Orphans::find(const std::vector<pid_t>& own) const {
  std::vector<pid_t> orphans = children_of(all_processes(), ::getpid());
  std::erase_if(orphans, [&](pid_t pid) {
    return std::find(before_.begin(), before_.end(), pid) != before_.end() ||
           std::find(own.begin(), own.end(), pid) != own.end();
  });
  return orphans;
}

void Orphans::reap(const std::vector<pid_t>& own) const {
  for (const pid_t pid : find(own)) ::waitpid(pid, nullptr, WNOHANG);
}

std::vector<pid_t> Orphans::end(const std::vector<pid_t>& own) const {
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    // Again and again: one that dies leaves its children here.
    std::vector<pid_t> orphans = find(own);
    if (orphans.empty() || std::chrono::steady_clock::now() - start > kLongestDeath) return orphans;
    bool all_ended = true;
    for (const pid_t pid : orphans) {
      ::kill(pid, SIGKILL);
      all_ended &= ::waitpid(pid, nullptr, WNOHANG) == pid;
    }
    if (!all_ended) std::this_thread::sleep_for(2ms);
  }
}

}  // namespace millrace::cli
