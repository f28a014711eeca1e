#include "cli/supervise.h"

#include <fmt/format.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "cli/child_process.h"
#include "cli/crew.h"
#include "cli/end_request.h"
#include "cli/error_tee.h"
#include "cli/host_probe.h"
#include "cli/launch_command.h"
#include "cli/restart_history.h"
#include "cli/run_watch.h"
#include "cli/signal_queue.h"
#include "millrace/report/units.h"
#include "millrace/state/checkpoint_store.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kUsersMistake = 2;
constexpr double kTickSeconds = 0.1;
constexpr double kLongestBackoffSeconds = 60;

double seconds_since(Clock::time_point then) { return std::chrono::duration<double>(Clock::now() - then).count(); }

Clock::time_point after(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

std::string describe(const ChildEnd& end) {
  if (end.signal != 0) return fmt::format("died by {}", signal_name(end.signal));
  const bool tells_signal = end.exit_code > 128 && ::sigabbrev_np(end.exit_code - 128);  // as mpirun and shells do
  return fmt::format("failed with exit code {}{}", end.exit_code,
                     tells_signal ? fmt::format(" ({})", signal_name(end.exit_code - 128)) : "");
}

// Where the first start goes on from.
int64_t step_of_resumed(const fs::path& from) {
  if (from.empty()) return 0;
  if (const auto step = state::step_of(from)) return *step;
  return RunWatch(from, /*goes_on=*/true).checkpoint().value_or(0);
}

class Supervisor {
 public:
  Supervisor(const Supervision& how, std::string program, Words arguments, const fs::path& run)
      : how_(how),
        program_(std::move(program)),
        train_(std::move(arguments)),
        run_(run),
        launcher_(split_words(how.launcher.empty() ? "mpirun" : how.launcher)),
        crew_(how.hosts.empty() ? std::vector<Host>() : parse_hosts(how.hosts), how.workers),
        watch_(run, /*goes_on=*/!train_.resumes().empty() && !train_.names_run()),
        history_(run) {}

  int run();

 private:
  bool uses_launcher() const { return crew_.all_workers() > 0 || !how_.launcher.empty(); }

  void gather_crew();
  Words arguments();
  Words command();
  Attempt new_attempt();
  Attempt nobody_there();
  Attempt train();
  ChildEnd follow(ChildProcess& child, Attempt& attempt);
  void look_for_lost_hosts(const ChildProcess& child);
  bool take_signals(ChildProcess* child);
  void begin_end(const ChildProcess& child);
  void wait(double seconds) const;

  std::optional<int> judge(const Attempt& attempt);
  std::string unnamed_loss(const ChildEnd& end) const;
  std::string reason_of(const ChildEnd& end, const std::string& lost) const;
  bool was_killed_by_request(const ChildEnd& end) const;
  int code_between_attempts() const;
  int end_well();
  int end_whole(const Attempt& attempt);
  int give_up(const Attempt& attempt);
  bool go_on_after(const Attempt& attempt);
  void remember(const Attempt& attempt);

  void say(const std::string& line) {
    if (!line.empty()) tee_.show(fmt::format("millrace: {}\n", line));
  }

  const Supervision how_;
  const std::string program_;
  const TrainCommand train_;
  const fs::path run_;
  const Launcher launcher_;
  Crew crew_;

  SignalQueue signals_;
  Orphans orphans_;
  ErrorTee tee_;
  RunWatch watch_;
  RestartHistory history_;
  std::unique_ptr<HostProbes> probes_;

  int attempts_ = 0, faults_ = 0, faults_in_place_ = 0;
  bool started_ = false, was_reduced_ = false;
  int asked_ = 0, forced_ = 0;  // by which signal to end, to end at once

  // Of one attempt.
  bool regrouping_ = false;                   // it was asked to end because lost hosts are back
  std::optional<Clock::time_point> kill_at_;  // it was asked to end, and has until then
  Clock::time_point next_probe_;
};

int Supervisor::run() {
  for (;;) {
    gather_crew();
    if (asked_ != 0) return code_between_attempts();
    ++attempts_;
    const Attempt attempt = crew_.is_empty() ? nobody_there() : train();
    if (const auto code = judge(attempt)) return *code;
  }
}

// Without --elastic all hosts are taken for granted: mpirun says what is wrong with one.
void Supervisor::gather_crew() {
  if (!how_.elastic || crew_.all_hosts().empty()) return;
  probes_ = std::make_unique<HostProbes>(launcher_, crew_.all_hosts(), signals_.mask_before());
  while (!probes_->done() && asked_ == 0) {
    wait(kTickSeconds);
    take_signals(nullptr);
  }
  const std::vector<Host> silent = probes_->silent();
  probes_.reset();
  orphans_.end({});
  if (asked_ == 0) say(crew_.leave_out(silent));
}

// From the newest checkpoint, if there is one.
Words Supervisor::arguments() {
  const bool reduced = crew_.is_reduced();
  Words words = train_.first();
  if (started_ && watch_.checkpoint()) {
    // A reduced crew has saved its own way to share the work. The job has the one that was meant.
    words = train_.from_checkpoint(run_.string(), /*with_job=*/was_reduced_ && !reduced);
  } else if (started_) {
    words = train_.from_the_beginning();
  }
  was_reduced_ |= reduced;
  if (reduced || (was_reduced_ && !train_.names_job())) {
    words.insert(words.end(), replan_settings().begin(), replan_settings().end());
  }
  return words;
}

Words Supervisor::command() {
  const Words words = arguments();
  if (uses_launcher()) return launcher_.launch(crew_.workers(), crew_.hosts(), program_, words);
  Words command{program_};
  command.insert(command.end(), words.begin(), words.end());
  return command;
}

Attempt Supervisor::new_attempt() {
  Attempt attempt;
  attempt.number = attempts_;
  attempt.began_s = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  attempt.workers = uses_launcher() ? crew_.workers() : 1;
  attempt.first_step = started_ ? watch_.checkpoint().value_or(0) : step_of_resumed(train_.resumes());
  watch_.begin_attempt(attempt.first_step);
  kill_at_.reset();
  regrouping_ = false;
  return attempt;
}

Attempt Supervisor::nobody_there() {
  Attempt attempt = new_attempt();
  attempt.reason = fmt::format("no host answers: {}", names_of(crew_.all_hosts()));
  return attempt;
}

Attempt Supervisor::train() {
  Attempt attempt = new_attempt();
  next_probe_ = after(how_.probe_every_s);
  const auto start = Clock::now();
  const int err = tee_.open();
  ChildProcess child(command(), STDOUT_FILENO, err, signals_.mask_before());
  started_ = true;
  tee_.close_child_end();
  attempt.end = follow(child, attempt);
  attempt.seconds = seconds_since(start);
  tee_.pump();
  probes_.reset();
  for (const pid_t pid : orphans_.end({})) say(fmt::format("process {} of attempt {} cannot be ended", pid, attempts_));
  tee_.pump();
  tee_.close();
  attempt.last_step = watch_.last_step();
  const std::string lost = unnamed_loss(*attempt.end);
  say(lost);
  if (attempt.reason.empty()) attempt.reason = reason_of(*attempt.end, lost);
  return attempt;
}

ChildEnd Supervisor::follow(ChildProcess& child, Attempt& attempt) {
  double silent_s = 0;
  auto last = Clock::now();
  for (;;) {
    wait(std::min(kTickSeconds, how_.hang_after_s / 4));
    tee_.pump();
    if (take_signals(&child)) {
      std::vector<pid_t> own = probes_ ? probes_->pids() : std::vector<pid_t>();
      own.push_back(child.pid());
      orphans_.reap(own);
    }
    if (const auto end = child.poll()) return *end;

    // Time in which this process was stopped itself counts for nothing.
    silent_s += std::min(seconds_since(last), 10 * kTickSeconds);
    last = Clock::now();
    if (watch_.observe()) silent_s = 0;
    if (silent_s >= how_.hang_after_s && !kill_at_) {
      attempt.hung = true;
      attempt.reason =
          fmt::format("hung: no step for {:.3g} s{}", how_.hang_after_s, child.is_stopped() ? " (stopped)" : "");
      say(fmt::format("attempt {} {}: ending it", attempts_, attempt.reason));
      begin_end(child);
    }
    if (kill_at_ && Clock::now() >= *kill_at_) child.kill_all();
    look_for_lost_hosts(child);
  }
}

void Supervisor::look_for_lost_hosts(const ChildProcess& child) {
  if (crew_.lost().empty() || asked_ != 0 || kill_at_ || regrouping_) return;
  if (!probes_ && Clock::now() >= next_probe_) {
    probes_ = std::make_unique<HostProbes>(launcher_, crew_.lost(), signals_.mask_before());
  }
  if (!probes_ || !probes_->done()) return;
  const bool all_answer = probes_->silent().empty();
  probes_.reset();
  next_probe_ = after(how_.probe_every_s);
  // Before its first step a child may not know yet what the signal means.
  if (!all_answer || !watch_.made_progress()) return;
  say(fmt::format("{} {} again: saving, then going on with all {}", names_of(crew_.lost()),
                  crew_.lost().size() == 1 ? "answers" : "answer", report::counted(crew_.all_workers(), "worker")));
  regrouping_ = true;
  child.send(SIGUSR1);
}

// Returns whether a child may have ended.
bool Supervisor::take_signals(ChildProcess* child) {
  bool child_changed = false;
  for (const int signal : signals_.take()) {
    child_changed |= signal == SIGCHLD;
    if (signal == SIGCHLD || signal == SIGPIPE) continue;
    if (asked_ == 0) {
      asked_ = signal;
      if (!child) continue;
      say(fmt::format("{}: the training saves a checkpoint, then ends; SIGINT or SIGTERM once more ends it at once",
                      signal_name(signal)));
      child->send(SIGUSR1);
    } else if (signal == SIGUSR1 || !child) {
      continue;
    } else if (forced_ == 0) {
      forced_ = signal;
      say(fmt::format("{} once more: ending at once", signal_name(signal)));
      begin_end(*child);
    } else {
      child->kill_all();
    }
  }
  return child_changed;
}

void Supervisor::begin_end(const ChildProcess& child) {
  child.ask_to_end();
  if (!kill_at_) kill_at_ = after(how_.grace_s);
}

// For a signal, a child's words, or the time.
void Supervisor::wait(double seconds) const {
  std::array<pollfd, 2> ready{{{signals_.fd(), POLLIN, 0}, {tee_.fd(), POLLIN, 0}}};  // below 0 is passed over
  const int milliseconds = static_cast<int>(std::ceil(std::max(seconds, 0.0) * 1e3));
  ::poll(ready.data(), ready.size(), milliseconds);
}

// The exit code, if this was the last attempt.
std::optional<int> Supervisor::judge(const Attempt& attempt) {
  const bool exited = attempt.end && attempt.end->signal == 0;
  const int code = !attempt.end ? 1 : exited ? attempt.end->exit_code : 128 + attempt.end->signal;
  const bool is_mistake = !attempt.hung && code == kUsersMistake;
  if (!is_mistake || attempts_ > 1) remember(attempt);  // one on the command line leaves no trace
  if (code == 0) return end_well();
  if (watch_.is_whole()) return code > 128 ? end_whole(attempt) : code;  // else it has said what it could not do
  if (forced_ != 0) return 128 + forced_;
  if (asked_ != 0) return was_killed_by_request(*attempt.end) ? code_between_attempts() : code;
  if (is_mistake) return code;
  const bool saved = !attempt.hung && code == kSavedAndEnded;
  if (regrouping_ && (saved || was_killed_by_request(*attempt.end))) return std::nullopt;
  if (saved) return code;  // somebody asked the child itself
  if (++faults_ > how_.restarts) return give_up(attempt);
  if (how_.elastic) say(crew_.learn_from(attempt.reason));
  if (!go_on_after(attempt)) return code_between_attempts();
  return std::nullopt;
}

// Who was lost, where those who are left have not said so.
std::string Supervisor::unnamed_loss(const ChildEnd& end) const {
  const bool failed = end.signal != 0 || (end.exit_code != 0 && end.exit_code != kSavedAndEnded);
  const bool was_asked = asked_ != 0 || kill_at_ || (regrouping_ && was_killed_by_request(end));
  return failed && !was_asked ? tee_.report().lost_by_launcher() : "";
}

// What failed says why; what was killed could not.
std::string Supervisor::reason_of(const ChildEnd& end, const std::string& lost) const {
  if (end.signal == 0 && end.exit_code == 0) return "done";
  if (end.signal == 0 && end.exit_code == kSavedAndEnded) {
    return regrouping_ ? "saved and ended for hosts that are back" : "saved and ended";
  }
  const std::string& words = tee_.report().reason();
  if (!lost.empty()) return words.empty() ? lost : fmt::format("{}; {}", lost, words);
  return end.signal != 0 || words.empty() ? describe(end) : words;
}

// It was asked to save and end before it knew how: nothing is lost but its start.
bool Supervisor::was_killed_by_request(const ChildEnd& end) const {
  return end.signal == SIGUSR1 || (uses_launcher() && end.signal == 0 && end.exit_code == 128 + SIGUSR1);
}

// Asked to end while no child runs.
int Supervisor::code_between_attempts() const { return watch_.checkpoint() ? kSavedAndEnded : 128 + asked_; }

int Supervisor::end_well() {
  if (attempts_ == 1) return 0;
  say(fmt::format("{}, see {}", report::counted(attempts_ - 1, "restart"), history_.file().string()));
  return 0;
}

// It died after its last file, with nothing left to go on with.
int Supervisor::end_whole(const Attempt& attempt) {
  say(fmt::format("attempt {} {} when all was done and written; see it with: millrace report {}", attempt.number,
                  attempt.reason, run_.string()));
  return end_well();
}

int Supervisor::give_up(const Attempt& attempt) {
  tee_.show(history_.table());
  say(fmt::format("gave up after {}: {}", report::counted(how_.restarts, "restart"), attempt.reason));
  return 1;
}

// Says so and waits. False: asked to end meanwhile.
bool Supervisor::go_on_after(const Attempt& attempt) {
  if (started_ && watch_.made_progress()) faults_in_place_ = 0;
  const double pause_s = std::min(kLongestBackoffSeconds, std::ldexp(how_.backoff_s, std::min(faults_in_place_++, 30)));
  std::string what;
  if (!attempt.end) {
    what = "found no host that answers";
  } else {
    what = attempt.hung ? attempt.reason : describe(*attempt.end);
    what += fmt::format(" after {:.1f} s{}", attempt.seconds,
                        attempt.last_step ? fmt::format(" at step {}", *attempt.last_step) : " before its first step");
  }
  const auto checkpoint = watch_.checkpoint();
  const std::string from = !started_    ? "starting"
                           : checkpoint ? fmt::format("going on from step {}", *checkpoint)
                                        : "starting from the beginning";
  say(fmt::format("attempt {} {}; {} in {:.3g} s (restart {} of {})", attempt.number, what, from, pause_s, faults_,
                  how_.restarts));
  const auto end = after(pause_s);
  while (Clock::now() < end && asked_ == 0) {
    wait(std::chrono::duration<double>(end - Clock::now()).count());
    if (take_signals(nullptr)) orphans_.reap({});
  }
  return asked_ == 0;
}

void Supervisor::remember(const Attempt& attempt) {
  try {
    history_.add(attempt);
  } catch (const std::runtime_error& error) {
    say(error.what());  // a full disk may have room again; the training is what matters
  }
}

}  // namespace

int supervise(const Supervision& how, const std::string& program, std::vector<std::string> arguments,
              const fs::path& run) {
  check_supervision(how);
  return Supervisor(how, program, std::move(arguments), run).run();
}

}  // namespace millrace::cli
