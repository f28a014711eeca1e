#include "millrace/runtime/device.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <optional>

#include "runtime/session_harness.h"

namespace millrace::runtime {
namespace {

namespace fs = std::filesystem;

// A cache of its own for every test.
class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!make("cpu")) GTEST_SKIP() << "cpu is not built in";
    if (const char* value = std::getenv("XDG_CACHE_HOME")) before_ = value;
    cache_ = fs::path(testing::TempDir()) / ("millrace_cache_" + std::to_string(getpid()));
    setenv("XDG_CACHE_HOME", cache_.c_str(), 1);
    job_.threads = 2;
  }
  void TearDown() override {
    before_ ? setenv("XDG_CACHE_HOME", before_->c_str(), 1) : unsetenv("XDG_CACHE_HOME");
    fs::remove_all(cache_);
  }

  // What was measured while a session was made.
  std::vector<std::string> prepare() {
    std::vector<std::string> measured;
    const auto backend =
        make_backend(job_, thread_count(job_), [&](const std::string& work) { measured.push_back(work); });
    const Session session(residual_network(4), *backend, {.evaluates = false});
    return measured;
  }
  size_t files() const {
    if (!fs::exists(cache_)) return 0;
    const fs::recursive_directory_iterator all(cache_);
    return static_cast<size_t>(std::count_if(begin(all), end(all), [](const auto& f) { return f.is_regular_file(); }));
  }

  job::Job job_;
  fs::path cache_;
  std::optional<std::string> before_;
};

TEST_F(DeviceTest, ChoicesAreKeptInTheUsersCache) {
  EXPECT_GT(prepare().size(), 0u);
  EXPECT_EQ(files(), 1u);
  EXPECT_TRUE(prepare().empty()) << "the second run measured again";
}

TEST_F(DeviceTest, ChoicesOfAnotherThreadCountAreNotTaken) {
  prepare();
  job_.threads = 1;
  EXPECT_GT(prepare().size(), 0u);
  EXPECT_EQ(files(), 2u);
}

TEST_F(DeviceTest, WithoutRememberNothingIsWritten) {
  job_.backend.remember = false;
  EXPECT_GT(prepare().size(), 0u);
  EXPECT_EQ(files(), 0u);
}

TEST_F(DeviceTest, WinogradOffMeasuresNoWinograd) {
  job_.backend.winograd = job::Winograd::Off;
  const auto backend = make_backend(job_, thread_count(job_));
  const Session session(residual_network(4), *backend, {.evaluates = false});
  for (const NodeTime& node : session.node_times()) EXPECT_NE(node.algorithm, "winograd") << node.node->name;
}

TEST(Device, TheReferenceIsMadeWhenAskedFor) {
  job::Job job;
  job.device = job::Device::Reference;
  EXPECT_EQ(make_backend(job, 1)->name(), "reference");
  EXPECT_GE(thread_count(job), 1);
  job.threads = 3;
  EXPECT_EQ(thread_count(job), 3);
}

}  // namespace
}  // namespace millrace::runtime
