// The command lines a supervised training is started with: as one process, or under mpirun on several hosts; from the
// beginning, or from a checkpoint.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::cli {

using Words = std::vector<std::string>;

struct Host {
  std::string name;
  int slots = 1;
  bool operator==(const Host&) const = default;
};

// "a:2,b". Throws std::invalid_argument with one line.
std::vector<Host> parse_hosts(std::string_view text);
std::string to_text(const std::vector<Host>& hosts);  // "a:2,b:1"
int count_slots(const std::vector<Host>& hosts);

// Words as a shell finds them, quotes and backslashes honoured, nothing expanded. Throws std::invalid_argument.
Words split_words(std::string_view text);

// mpirun, or what stands in for it.
class Launcher {
 public:
  explicit Launcher(Words words);
  // Without `workers` it has to know itself how many; without hosts they are on this one.
  Words launch(int workers, const std::vector<Host>& hosts, const std::string& program, const Words& arguments) const;
  Words probe(const Host& host) const;  // succeeds if a process can be started there

 private:
  Words words_;
};

// The arguments of millrace train, taken apart.
class TrainCommand {
 public:
  explicit TrainCommand(Words arguments);

  const Words& first() const { return arguments_; }
  Words from_the_beginning() const;
  // With JOB its settings hold, without it those that were saved.
  Words from_checkpoint(const std::string& run, bool with_job) const;

  bool names_job() const { return !job_.empty(); }
  bool names_run() const { return has_out_; }
  const std::string& resumes() const { return resumes_; }  // empty: begins anew

 private:
  Words arguments_;
  std::string job_, resumes_;
  bool has_out_ = false;
  Words kept_;  // what holds for every start: --set, --plan and what else there may be
};

// Settings that leave it to the planner how the workers there are share the work, whatever the job says.
const Words& replan_settings();

}  // namespace millrace::cli
