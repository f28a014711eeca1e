// What the system knows of running processes.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace millrace::cli {

inline std::filesystem::path directory_of(pid_t pid) { return "/proc/" + std::to_string(pid); }

inline std::string text_of(pid_t pid, const std::string& file) {
  std::ifstream in(directory_of(pid) / file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Not merely waiting for its parent to notice its end.
inline bool is_running(pid_t pid) {
  const std::string stat = text_of(pid, "stat");
  const size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && stat.compare(name_end + 2, 1, "Z") != 0;
}

inline std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  std::istringstream in(text_of(parent, "task/" + std::to_string(parent) + "/children"));
  for (pid_t pid = 0; in >> pid;) children.push_back(pid);
  return children;
}

// The processes that an mpirun started on this host, by rank.
inline std::map<int, pid_t> workers_of(pid_t mpirun) {
  std::map<int, pid_t> workers;
  for (const pid_t pid : children_of(mpirun)) {
    const std::string environment = '\0' + text_of(pid, "environ");
    const std::string name = std::string(1, '\0') + "OMPI_COMM_WORLD_RANK=";
    const size_t at = environment.find(name);
    if (at != std::string::npos) workers[std::atoi(environment.c_str() + at + name.size())] = pid;
  }
  return workers;
}

// Memory that a process shares with others.
inline std::set<std::string> shared_files_of(pid_t pid) {
  std::set<std::string> files;
  std::istringstream in(text_of(pid, "maps"));
  for (std::string line; std::getline(in, line);) {
    const size_t at = line.find("/dev/shm/");
    if (at != std::string::npos) files.insert(line.substr(at, line.find(' ', at) - at));
  }
  return files;
}

inline int64_t count_descriptors(pid_t pid) {
  return std::distance(std::filesystem::directory_iterator(directory_of(pid) / "fd"), {});
}

}  // namespace millrace::cli
