#include "cli/planning.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <set>
#include <stdexcept>
#include <thread>

#include "cli/detect.h"
#include "cli/measure.h"
#include "millrace/base/error.h"
#include "millrace/job/reader.h"
#include "millrace/job/small_file.h"
#include "millrace/job/text.h"
#include "millrace/model/model.h"
#include "millrace/report/plan_report.h"
#include "millrace/report/units.h"
#include "millrace/runtime/device.h"
#include "millrace/runtime/profiling.h"

namespace millrace::cli {
namespace {

constexpr int kRepeats = 3;

int devices_of_a_node(const plan::Cluster& cluster) {
  int most = 1;
  for (const plan::Device& device : cluster.devices) most = std::max(most, device.id.device + 1);
  return most;
}

std::vector<job::Mode> allowed_modes(const job::Job& job) {
  std::vector<job::Mode> modes = plan::synchronous_modes();
  if (job.parallel.stale) modes.insert(modes.end(), {job::Mode::PipeDream, job::Mode::Ssp});
  return modes;
}

PlannedChoice plan_for(const job::Job& job, plan::Cluster cluster, const std::vector<profile::Profile>& profiles) {
  PlannedChoice planned;
  planned.graph = model::training_graph(job, 1);
  planned.cluster = std::move(cluster);
  planned.choice = plan::choose(job, profiles, planned.cluster, allowed_modes(job));
  return planned;
}

profile::Profile measure(const job::Job& job, int64_t rows, int workers, const runtime::OnMeasure& on_measure) {
  runtime::ProfilingOptions options;
  options.rows = rows;
  options.threads = runtime::thread_count(job, workers);
  options.beside = workers - 1;
  options.repeats = kRepeats;
  options.attempts = 1;
  return runtime::measure_profile(job, options, machine_limit(job), on_measure).profile;
}

// On one machine one worker with all its cores competes with workers of one core each.
void consider_one_worker(const job::Job& job, PlannedChoice& planned) {
  if (job.device == job::Device::Cuda || job.threads != 0 || planned.cluster.devices.size() < 2) return;
  job::Job alone = job;
  alone.parallel = {};
  alone.parallel.placement = "0:0";
  plan::Cluster whole = planned.cluster;
  whole.levels.clear();
  whole.matrix.clear();
  whole.devices.resize(1);
  whole.devices[0].memory_bytes *= static_cast<int64_t>(planned.cluster.devices.size());
  plan::Candidate candidate;
  candidate.parallel = alone.parallel;
  candidate.plan = plan::make_plan(alone, planned.graph, 1);
  try {
    candidate.prediction = plan::predict(alone, candidate.plan, {measure(job, job.batch, 1, {})}, whole);
  } catch (const std::invalid_argument&) {
    return;  // the whole batch does not fit in one piece
  }
  plan::Choice& choice = planned.choice;
  if (!candidate.fits() || candidate.prediction.step_s > choice.candidates[0].prediction.step_s) return;
  choice.candidates.insert(choice.candidates.begin(), std::move(candidate));
  for (int* index : {&choice.data_parallel, &choice.straight_pipeline}) *index += *index < 0 ? 0 : 1;
  choice.runner_up = 1;
}

}  // namespace

void PlanningArguments::declare(CLI::App& command) {
  command.add_option("--cluster", cluster, "The cluster (YAML), or local: this machine, measured")
      ->type_name("FILE")
      ->check(not_empty("clusters/v100-8x1.yaml"))
      ->capture_default_str();
  command
      .add_option("--profile", profiles,
                  "Costs of the operators (millrace profile), once for each micro-batch size (default: measured here)")
      ->type_name("FILE")
      ->take_all()
      ->allow_extra_args(false);
}

plan::Cluster find_cluster(const std::string& name, const job::Job& job) {
  if (name != "local") return plan::read_cluster(name);
  return job.device == job::Device::Cuda ? detect_gpus() : detect_threads();
}

std::vector<profile::Profile> find_profiles(const job::Job& job, const plan::Cluster& cluster,
                                            const std::vector<std::string>& files) {
  std::vector<profile::Profile> profiles;
  for (const std::string& file : files) {
    profiles.push_back(profile::parse_profile(job::read_small_file(file, "profile"), file));
  }
  if (!profiles.empty()) return profiles;
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  // Cores share what they compute with, GPUs do not.
  const int workers = job.device == job::Device::Cuda ? 1 : std::min(devices_of_a_node(cluster), cores);
  const std::set<int64_t> sizes{std::max<int64_t>(1, job.batch / 16), std::max<int64_t>(1, job.batch / 4), job.batch};
  fmt::print(stderr, "measuring operators on this machine, {} at once ...\n", report::counted(workers, "worker"));
  const runtime::OnMeasure on_measure = announce_measuring();
  for (int64_t rows : sizes) {
    try {
      profiles.push_back(measure(job, rows, workers, on_measure));
    } catch (const std::invalid_argument&) {
      // More than this machine can hold at once: what fewer rows cost says it too.
      if (profiles.empty()) throw;
      break;
    }
  }
  return profiles;
}

PlannedChoice plan_job(const job::Job& job, const PlanningArguments& arguments) {
  plan::Cluster cluster = find_cluster(arguments.cluster, job);
  const std::vector<profile::Profile> profiles = find_profiles(job, cluster, arguments.profiles);
  PlannedChoice planned = plan_for(job, std::move(cluster), profiles);
  if (arguments.cluster == "local" && arguments.profiles.empty()) consider_one_worker(job, planned);
  return planned;
}

job::Job resolve_auto(comm::Process& process, const job::Job& job, std::string& plan_json) {
  if (job.parallel.mode != job::Mode::Auto) return job;
  plan::Cluster cluster;
  const bool from_file = !job.parallel.cluster.empty();  // which only process 0 needs to have
  if (!from_file && process.size() == 1) cluster = find_cluster("local", job);
  if (!from_file && process.size() == 2) cluster = detect_processes(process);
  if (!from_file && process.size() > 2) {
    fail_input(
        "parallel.mode is auto and {} processes were started; write parallel.cluster, the file that says how "
        "they are joined",
        process.size());
  }
  job::Job resolved = job;
  std::exception_ptr failure;
  if (process.rank() == 0) {
    try {
      if (from_file) cluster = plan::read_cluster(job.parallel.cluster);
      PlannedChoice planned = plan_for(job, cluster, find_profiles(job, cluster, {}));
      if (process.size() == 1 && !from_file) consider_one_worker(job, planned);
      const report::PlannedJob shown{job, planned.graph, planned.cluster, planned.choice};
      fmt::print("{}\n", report::plan_tables(shown));
      plan_json = report::plan_json(shown).dump(2) + "\n";
      resolved.parallel = planned.choice.candidates[0].parallel;
    } catch (...) {
      failure = std::current_exception();
    }
  }
  // The others wait for it: they are told of a failure too.
  const bool planned = process.rank() == 0 && !failure;
  const std::string text = process.broadcast(planned ? job::to_yaml(resolved) : std::string());
  if (failure) std::rethrow_exception(failure);
  if (text.empty()) fail_run("process 0 could not plan");
  return process.rank() == 0 ? resolved : job::parse_job(text, "plan", {});
}

}  // namespace millrace::cli
