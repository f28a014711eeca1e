// What several processes of one command do as one: read the same job, fail together, and let process 0 speak.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include "cli/commands.h"
#include "millrace/comm/first_of_all.h"
#include "millrace/job/reader.h"

namespace millrace::cli {

// Thrown where process 0 says everything. The others end as if all were well: mpirun ends what is left of a job as soon
// as one process fails, and process 0 is to have its word first. Its exit code is the job's.
struct SilentExit {};

// Every process does `work`. If it fails on any, all of them end here, and process 0 says why. `undo` takes back what
// one that did not fail has made, before the process is gone.
template <typename Work, typename Undo>
void together(std::unique_ptr<comm::Process>& process, Work&& work, Undo&& undo) {
  std::string failure;  // exit code, then the line
  try {
    work();
  } catch (const std::invalid_argument& error) {
    failure = std::string("2") + error.what();
  } catch (const std::exception& error) {
    failure = std::string("1") + error.what();
  }
  const std::string first = comm::first_of_all(*process, failure);
  if (first.empty()) return;
  const bool speaks = process->rank() == 0;
  undo();
  process.reset();
  if (!speaks) throw SilentExit{};
  if (first[0] == '2') throw std::invalid_argument(first.substr(1));
  throw std::runtime_error(first.substr(1));
}

template <typename Work>
void together(std::unique_ptr<comm::Process>& process, Work&& work) {
  together(process, work, [] {});
}

// Process 0 reads the job; the others need not have its file.
template <typename Read>
job::Job read_job_together(std::unique_ptr<comm::Process>& process, const std::string& name, Read&& read) {
  job::Job job;
  together(process, [&] {
    if (process->rank() == 0) job = read();
  });
  if (process->size() == 1) return job;
  const std::string text = process->broadcast(process->rank() == 0 ? job::to_yaml(job) : std::string());
  return process->rank() == 0 ? job : job::parse_job(text, name, {});
}

inline job::Job read_job_together(std::unique_ptr<comm::Process>& process, const JobArguments& arguments) {
  return read_job_together(process, arguments.path, [&] { return arguments.read(); });
}

}  // namespace millrace::cli
