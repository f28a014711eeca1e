// Workers that are threads need no network: nobody can talk to a run from outside.
#include <filesystem>

#include "runtime/training_harness.h"
#include "state/temporary_folder.h"

namespace millrace::runtime {
namespace {

namespace fs = std::filesystem;

// Open sockets of this process, of whatever kind.
int sockets() {
  int found = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // that of the listing itself
    found += fs::read_symlink(entry.path(), gone).string().starts_with("socket:") ? 1 : 0;
  }
  return found;
}

class Network : public state::TemporaryFolder {};

TEST_F(Network, ARunOpensNoSocket) {
  const int before = sockets();
  for (const char* placement : {"0:0", "0:0-1.0:2"}) {
    job::Job job = small_job();
    job.steps = 8;
    job.data.test_samples = 5;
    job.parallel.mode = job::Mode::Ssp;
    job.parallel.placement = placement;
    job.checkpoint.every = {job::Period::Unit::Steps, 3};
    const auto process = comm::make_local_process();
    Training training(job, *process, {});
    Observer observer;
    observer.checkpoints = folder_ / "checkpoints";
    int most = 0;
    observer.on_step = [&](const StepReport&) { most = std::max(most, sockets()); };
    EXPECT_EQ(training.run(observer).steps, 8);
    EXPECT_EQ(most, before) << placement;
  }
}

}  // namespace
}  // namespace millrace::runtime
