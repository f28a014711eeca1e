// Checkpoints that are written while training goes on, on a disk that takes as long as the test wants.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <thread>

#include "millrace/state/checkpoint_store.h"
#include "runtime/training_harness.h"
#include "state/temporary_folder.h"

namespace {

// Whoever flushes a file to the disk waits here while it is closed.
class DiskGate {
 public:
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    gave_up_ = false;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    closed_ = false;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    if (!closed_) return;
    ++waiting_;
    changed_.notify_all();
    if (!changed_.wait_for(lock, kLongest, [&] { return !closed_; })) gave_up_ = true;
    --waiting_;
  }
  void await_someone() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kLongest, [&] { return waiting_ > 0; })) gave_up_ = true;
  }
  bool someone_waits() {
    const std::lock_guard lock(mutex_);
    return waiting_ > 0;
  }
  bool gave_up() {
    const std::lock_guard lock(mutex_);
    return gave_up_;
  }

 private:
  static constexpr auto kLongest = std::chrono::seconds(60);  // of a test that fails
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false, gave_up_ = false;
  int waiting_ = 0;
};

DiskGate disk;

}  // namespace

// In place of the system's, for this whole binary.
extern "C" int fsync(int file) {
  disk.pass();
  return static_cast<int>(::syscall(SYS_fsync, file));
}

namespace millrace::runtime {
namespace {

namespace fs = std::filesystem;

job::Job saved_job(const job::Parallel& parallel, int64_t steps, double every) {
  job::Job job = small_job();
  job.steps = steps;
  job.parallel = parallel;
  job.checkpoint = {.every = {job::Period::Unit::Steps, every}, .keep = 100};
  return job;
}

std::vector<job::Parallel> ways() {
  job::Parallel one, stages, delayed;
  one.placement = "0:0";
  stages.mode = job::Mode::OneFOneB;
  stages.microbatches = 4;
  stages.placement = "0:0.0:1";
  delayed.mode = job::Mode::Ssp;
  delayed.placement = "0:0.0:1.0:2";
  return {one, stages, delayed};
}

struct Saved {
  TrainingResult result;
  state::State state;
  std::vector<std::string> notes;
};

class SlowDisk : public state::TemporaryFolder {
 protected:
  void TearDown() override {
    disk.open();
    TemporaryFolder::TearDown();
  }

  // `on_told`: how many steps are done; `wants_to_end`: whether it shall end.
  static Saved train(
      const job::Job& job, const fs::path& checkpoints, const std::function<void(int64_t)>& on_told,
      const std::function<bool()>& wants_to_end = [] { return false; }) {
    Saved saved;
    const auto process = comm::make_local_process();
    Training training(job, *process, {});
    Observer observer;
    observer.checkpoints = checkpoints;
    observer.on_step = [&](const StepReport& step) { on_told(step.step + 1); };
    observer.on_note = [&](const std::string& note) { saved.notes.push_back(note); };
    observer.wants_to_end = wants_to_end;
    saved.result = training.run(observer);
    saved.state = training.state();
    return saved;
  }

  static void expect_all_good(const fs::path& checkpoints) {
    for (const fs::path& path : state::CheckpointStore(checkpoints).list()) {
      EXPECT_TRUE(state::verify(path).empty()) << path;
    }
    for (const auto& entry : fs::directory_iterator(checkpoints)) {
      EXPECT_NE(entry.path().filename().string().front(), '.') << entry.path() << " is left";
    }
  }
};

TEST_F(SlowDisk, DoesNotKeepTrainingWaiting) {
  for (const job::Parallel& parallel : ways()) {
    SCOPED_TRACE(parallel.placement);
    const job::Job job = saved_job(parallel, 26, 2);
    const fs::path folder = folder_ / parallel.placement;
    disk.close();
    const Saved saved = train(job, folder, [&](int64_t told) {
      if (told == 3) disk.await_someone();
      if (told != 12) return;
      EXPECT_TRUE(disk.someone_waits());  // since step 2, and training has come so far
      disk.open();
    });
    EXPECT_FALSE(disk.gave_up());
    EXPECT_EQ(saved.result.steps, 26);
    EXPECT_EQ(saved.result.saved_step, 26);
    const state::CheckpointStore store(folder);
    EXPECT_EQ(store.list().front(), store.path(2));
    EXPECT_EQ(store.list().back(), store.path(26));
    expect_all_good(folder);
    ASSERT_GE(saved.notes.size(), 4u);
    EXPECT_EQ(saved.notes.size(), saved.result.failed_saves.size());
    EXPECT_EQ(saved.notes[0],
              "the checkpoint of step 4 is left out: that of step 2 is still being written; training goes on");
    EXPECT_EQ(saved.result.failed_saves[3], "step 10: that of step 2 is still being written");
    EXPECT_TRUE(saved.state == train(job, {}, [](int64_t) {}).state);
  }
}

// Opened a while after training has come to its end, which by then waits.
TEST_F(SlowDisk, TheLastStateWaitsForTheOneThatIsBeingWritten) {
  for (const bool is_stopped : {false, true}) {
    SCOPED_TRACE(is_stopped ? "asked to end" : "at its end");
    const job::Job job = saved_job(ways()[1], is_stopped ? 1'000'000 : 10, 4);
    const fs::path folder = folder_ / (is_stopped ? "stopped" : "ended");
    std::thread opener;
    int64_t told = 0;
    const auto open_later = [&] {
      if (opener.joinable()) return;
      opener = std::thread([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        disk.open();
      });
    };
    disk.close();
    const Saved saved = train(
        job, folder,
        [&](int64_t now) {
          told = now;
          if (told == 5) disk.await_someone();
          if (told == job.steps) open_later();
        },
        [&] {
          if (is_stopped && told >= 6) open_later();
          return is_stopped && told >= 6;
        });
    ASSERT_TRUE(opener.joinable());
    opener.join();
    EXPECT_FALSE(disk.gave_up());
    EXPECT_EQ(saved.result.stopped, is_stopped);
    EXPECT_EQ(saved.result.saved_step, saved.result.steps);
    const state::CheckpointStore store(folder);
    EXPECT_EQ(store.list(), (std::vector{store.path(4), store.path(saved.result.steps)}));
    expect_all_good(folder);
    const std::vector<std::string>& failed = saved.result.failed_saves;
    const std::string last = fmt::format("step {}:", saved.result.steps);
    EXPECT_TRUE(std::none_of(failed.begin(), failed.end(), [&](const auto& line) { return line.starts_with(last); }));
  }
}

TEST_F(SlowDisk, ManyCheckpointsLeaveNoDescriptorOpen) {
  const auto count = [] { return std::distance(fs::directory_iterator("/proc/self/fd"), {}); };
  job::Job job = saved_job(ways()[2], 120, 10);
  job.checkpoint.keep = 2;
  job.checkpoint.best = job::Best::Loss;
  job.data.test_samples = 5;
  const auto process = comm::make_local_process();
  Training training(job, *process, {});
  Observer observer;
  observer.checkpoints = folder_ / "checkpoints";
  const auto before = count();
  const TrainingResult result = training.run(observer);
  EXPECT_EQ(count(), before);
  ASSERT_LE(result.failed_saves.size(), 9u) << "of 12: the disk is too slow for this to say much";
}

}  // namespace
}  // namespace millrace::runtime
