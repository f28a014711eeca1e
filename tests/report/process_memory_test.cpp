#include "millrace/report/process_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <string>

namespace millrace::report {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kMiB = 1 << 20;

TEST(ProcessMemory, PeakIsAtLeastWhatIsResident) {
  const ProcessMemory memory = process_memory();
  EXPECT_GT(memory.resident_bytes, kMiB);
  EXPECT_GE(memory.peak_bytes, memory.resident_bytes);
}

TEST(ProcessMemory, PeakRemembersWhatWasFreedUntilItIsReset) {
  if (!reset_peak_memory()) GTEST_SKIP() << "this kernel keeps the peak";
  const int64_t before = process_memory().peak_bytes;
  {
    const auto block = std::make_unique<char[]>(64 * kMiB);
    std::memset(block.get(), 1, 64 * kMiB);
    EXPECT_NE(block[kMiB], 0);
  }
  EXPECT_GT(process_memory().peak_bytes, before + 60 * kMiB);
}

TEST(ProcessMemory, ThisMachineHasSomeLeft) {
  EXPECT_GT(available_memory(), kMiB);
  EXPECT_LT(available_memory(), std::numeric_limits<int64_t>::max());
}

// A made-up /proc and /sys/fs/cgroup.
class AvailableMemory : public testing::Test {
 protected:
  AvailableMemory() {
    std::string name = (fs::temp_directory_path() / "millrace-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
    write("proc/meminfo", "MemTotal:  2048000 kB\nMemAvailable:  1024000 kB\n");
  }
  ~AvailableMemory() override { fs::remove_all(root_); }

  void write(const fs::path& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  int64_t available() const { return available_memory(root_ / "proc", root_ / "cgroup"); }

  fs::path root_;
};

TEST_F(AvailableMemory, IsTheMachinesWithoutLimits) {
  EXPECT_EQ(available(), int64_t{1024000} * 1024);
  write("proc/self/cgroup", "0::/\n");
  EXPECT_EQ(available(), int64_t{1024000} * 1024);
  write("cgroup/memory.max", "max\n");
  EXPECT_EQ(available(), int64_t{1024000} * 1024);
}

TEST_F(AvailableMemory, IsWhatIsLeftUnderTheGroupsLimit) {
  write("proc/self/cgroup", "0::/user/job\n");
  write("cgroup/user/job/memory.max", "104857600\n");
  write("cgroup/user/job/memory.current", "62914560\n");
  EXPECT_EQ(available(), 40 * kMiB);
  write("cgroup/user/job/memory.stat", "anon 1\ninactive_file 20971520\n");
  EXPECT_EQ(available(), 60 * kMiB);
}

TEST_F(AvailableMemory, IsBoundByGroupsAbove) {
  write("proc/self/cgroup", "0::/user/job\n");
  write("cgroup/user/job/memory.max", "104857600\n");
  write("cgroup/user/memory.max", "52428800\n");
  EXPECT_EQ(available(), 50 * kMiB);
}

TEST_F(AvailableMemory, KnowsTheFirstVersionOfGroups) {
  write("proc/self/cgroup", "12:cpu,cpuacct:/a\n4:memory:/docker/1\n");
  write("cgroup/memory/docker/1/memory.limit_in_bytes", "104857600\n");
  write("cgroup/memory/docker/1/memory.usage_in_bytes", "10485760\n");
  EXPECT_EQ(available(), 90 * kMiB);
  write("cgroup/memory/docker/1/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(available(), int64_t{1024000} * 1024);
}

TEST_F(AvailableMemory, IsNeverNegative) {
  write("proc/self/cgroup", "0::/\n");
  write("cgroup/memory.max", "1000\n");
  write("cgroup/memory.current", "2000\n");
  EXPECT_EQ(available(), 0);
}

}  // namespace
}  // namespace millrace::report
