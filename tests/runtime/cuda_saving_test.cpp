// Checkpoints of runs on a GPU, which go on while they are written.
#include "millrace/state/checkpoint_store.h"
#include "runtime/cuda_harness.h"
#include "state/temporary_folder.h"

namespace millrace::runtime {
namespace {

namespace fs = std::filesystem;
using job::Mode;
using job::Precision;

struct Saved {
  state::State state;
  TrainingResult result;
  size_t planned_bytes = 0;
};

class CudaSaving : public state::TemporaryFolder {
 protected:
  void SetUp() override {
    if (backend::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
    TemporaryFolder::SetUp();
  }
  void TearDown() override {
    if (!folder_.empty()) TemporaryFolder::TearDown();
  }

  static Saved train(const job::Job& job, const fs::path& checkpoints, size_t memory_limit = 0,
                     const StateReader& reader = {}) {
    Saved saved;
    const auto process = comm::make_local_process();
    Training training(job, *process, {.memory_bytes = memory_limit, .source = "the test"}, {}, reader);
    saved.planned_bytes = training.planned_bytes();
    Observer observer;
    observer.checkpoints = checkpoints;
    saved.result = training.run(observer);
    saved.state = training.state();
    return saved;
  }
  static state::State read(const fs::path& checkpoint) {
    return state::read_state(checkpoint, state::read_manifest(checkpoint));
  }

  // Every checkpoint of the run is the state of a run of so many steps; returns how many there are.
  static size_t expect_states_of_their_steps(const job::Job& job, const fs::path& folder) {
    const std::vector<fs::path> all = state::CheckpointStore(folder).list();
    for (const fs::path& checkpoint : all) {
      job::Job shorter = job;
      shorter.steps = *state::step_of(checkpoint);
      shorter.checkpoint = {};
      EXPECT_TRUE(read(checkpoint) == run(shorter).state) << checkpoint;
    }
    return all.size();
  }
};

TEST_F(CudaSaving, ACheckpointIsTheStateOfItsStep) {
  struct Case {
    const char* model;
    Mode mode;
    const char* placement;
    int microbatches;
    Precision precision;
  };
  const Case cases[] = {{"alexnet_small", Mode::Dp, "0:0", 1, Precision::Fp32},
                        {"resnet_small", Mode::Dp, "0:0", 1, Precision::Fp32},
                        {"resnet_small", Mode::Dp, "0:0", 1, Precision::Fp16},
                        {"resnet_small", Mode::Dp, "0:0", 2, Precision::Bf16},
                        {"alexnet_small", Mode::Dp, "0:0-1", 1, Precision::Fp32},
                        {"alexnet_small", Mode::OneFOneB, "0:0.0:1", 4, Precision::Fp16},
                        {"alexnet_small", Mode::Ssp, "0:0.0:1", 1, Precision::Fp32},
                        {"alexnet_small", Mode::Ssp, "0:0.0:1", 1, Precision::Bf16},
                        {"alexnet_small", Mode::PipeDream, "0:0.0:1", 1, Precision::Fp32}};
  for (size_t i = 0; i < std::size(cases); ++i) {
    const Case& c = cases[i];
    if (c.precision != Precision::Fp32 && device::is_emulated()) continue;
    SCOPED_TRACE(fmt::format("{} on {}, mode {}, precision {}", c.model, c.placement, static_cast<int>(c.mode),
                             static_cast<int>(c.precision)));
    job::Job job = cuda_job(c.precision);
    job.model.name = c.model;
    job.steps = device::is_emulated() ? 5 : 12;  // of each a run is compared
    job.parallel.mode = c.mode;
    job.parallel.placement = c.placement;
    job.parallel.microbatches = c.microbatches;
    job.checkpoint = {.every = {job::Period::Unit::Steps, 1}, .keep = 100};
    const fs::path folder = folder_ / std::to_string(i);
    const Saved whole = train(job, folder);
    EXPECT_GE(expect_states_of_their_steps(job, folder), 2u);  // one is left out while another is written
    // Going on from the first gives the bits of the run.
    const fs::path first = state::CheckpointStore(folder).list().front();
    EXPECT_TRUE(train(job, {}, 0, [&](const Session::Wanted&) { return read(first); }).state == whole.state);
  }
}

// 57 M parameters: many steps go by, and are recorded, while the first checkpoint is still read and written; it comes
// through the pinned memory in many pieces.
TEST_F(CudaSaving, ALargeModelGoesOnWhileItIsSaved) {
  job::Job job = cuda_job();
  job.model = {.name = "alexnet", .classes = 10, .image_size = 96, .channels = 3, .dropout = 0.5};
  job.steps = 30;
  job.checkpoint = {.every = {job::Period::Unit::Steps, 1}, .keep = 100};
  const Saved whole = train(job, folder_ / "whole");
  EXPECT_TRUE(fs::exists(state::CheckpointStore(folder_ / "whole").path(1)));
  EXPECT_GE(expect_states_of_their_steps(job, folder_ / "whole"), 2u);
  job.checkpoint = {};
  EXPECT_TRUE(run(job).state == whole.state) << "saving changed the training";
}

TEST_F(CudaSaving, TheCopyIsPlannedAndLeftOutWhereThereIsNoRoom) {
  job::Job job = cuda_job(device::is_emulated() ? Precision::Fp32 : Precision::Fp16);
  job.model.name = "resnet_small";
  const size_t without = train(job, {}).planned_bytes;
  job.checkpoint = {.every = {job::Period::Unit::Steps, 2}, .keep = 100};
  const size_t with = train(job, {}).planned_bytes;
  ASSERT_GT(with, without);
  for (const size_t limit : {with, with - 1}) {
    const fs::path folder = folder_ / std::to_string(limit);
    const Saved saved = train(job, folder, limit);
    EXPECT_EQ(saved.planned_bytes, limit == with ? with : without);
    EXPECT_GT(saved.result.save_wait_s, 0);
    EXPECT_GE(expect_states_of_their_steps(job, folder), 2u);
  }
}

}  // namespace
}  // namespace millrace::runtime
