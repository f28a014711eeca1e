#include "cli/supervision.h"

#include <cmath>
#include <cstdlib>

#include "cli/launch_command.h"
#include "millrace/base/error.h"

namespace millrace::cli {
namespace {

bool is_started_by_launcher() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK"}) {
    if (std::getenv(name)) return true;
  }
  // A batch script of Slurm has most of its variables too, but not this one.
  const char* tasks = std::getenv("SLURM_STEP_NUM_TASKS");
  return tasks && std::atoi(tasks) > 1;
}

void check_seconds(const char* option, double seconds, double least) {
  if (seconds >= least && std::isfinite(seconds)) return;
  fail_input("{} {}: is not a number of seconds from {:g} on; leave it out for the default", option, seconds, least);
}

}  // namespace

void check_supervision(const Supervision& how) {
  if (is_started_by_launcher()) {
    fail_input("--restarts under mpirun: start millrace without mpirun and name the hosts: --hosts a:2,b:2");
  }
  if (how.restarts < 0) fail_input("--restarts {}: write 0 or more", how.restarts);
  if (how.workers < 0) fail_input("--workers {}: write 1 or more", how.workers);
  if (!how.hosts.empty() && how.workers > 0) {
    fail_input("--hosts {} with --workers {}: write the workers of each host: --hosts a:2,b:2", how.hosts, how.workers);
  }
  if (!how.hosts.empty()) parse_hosts(how.hosts);
  if (!how.launcher.empty() && split_words(how.launcher).empty()) {
    fail_input("--launcher \"{}\": names no program; write e.g. --launcher 'mpirun -x PATH'", how.launcher);
  }
  if (how.elastic && how.hosts.empty() && how.workers == 0) {
    fail_input("--elastic: which workers may be lost is not said; write --hosts a:2,b:2 or --workers 4");
  }
  if (how.elastic && how.restarts == 0) {
    fail_input("--elastic: going on with fewer workers is a restart; write how many there may be: --restarts 3");
  }
  check_seconds("--hang-after", how.hang_after_s, 0.01);
  check_seconds("--probe-every", how.probe_every_s, 0.01);
  check_seconds("--backoff", how.backoff_s, 0);
  check_seconds("--grace", how.grace_s, 0);
}

}  // namespace millrace::cli
