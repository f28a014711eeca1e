#include "millrace/report/run_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

namespace millrace::report {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class RunDirectoryTest : public testing::Test {
 protected:
  RunDirectoryTest() {
    std::string name = (fs::temp_directory_path() / "millrace-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
  }
  ~RunDirectoryTest() override { fs::remove_all(root_); }

  static std::string read(const fs::path& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static int64_t entries(const fs::path& path) {
    return std::distance(fs::directory_iterator(path), fs::directory_iterator());
  }
  static std::string refusal(const fs::path& path, bool overwrite = false) {
    try {
      RunDirectory::create(path, overwrite);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  }

  fs::path root_;
};

TEST_F(RunDirectoryTest, IsCreatedWithItsParents) {
  const RunDirectory run = RunDirectory::create(root_ / "a" / "b" / "");
  EXPECT_EQ(run.path(), root_ / "a" / "b");
  EXPECT_TRUE(fs::is_directory(root_ / "a" / "b"));
}

TEST_F(RunDirectoryTest, AnEmptyDirectoryIsTaken) {
  fs::create_directory(root_ / "empty");
  EXPECT_EQ(refusal(root_ / "empty"), "");
}

TEST_F(RunDirectoryTest, OneThatHoldsARunIsRefused) {
  for (const char* file : {"summary.json", "job.yaml"}) {
    const fs::path path = root_ / file;
    RunDirectory::create(path).write(file, "old");
    EXPECT_EQ(refusal(path), "output directory " + path.string() +
                                 ": already holds a run; choose another with --out or replace it with --overwrite");
    EXPECT_EQ(read(path / file), "old");
  }
}

TEST_F(RunDirectoryTest, OverwritingRemovesTheOldRunAndNothingElse) {
  const RunDirectory old = RunDirectory::create(root_ / "run");
  for (const char* file : {"summary.json", "job.yaml", "metrics.jsonl", "trace.json", "plan.json", "elastic.json",
                           "elastic.svg", "notes.txt"}) {
    old.write(file, "old");
  }
  RunDirectory::create(root_ / "run", true);
  EXPECT_EQ(entries(root_ / "run"), 1);
  EXPECT_EQ(read(root_ / "run" / "notes.txt"), "old");
}

TEST_F(RunDirectoryTest, AFileIsRefused) {
  write_file(root_ / "file", "text");
  EXPECT_EQ(refusal(root_ / "file"),
            "output directory " + (root_ / "file").string() + ": is not a directory; choose another with --out");
  EXPECT_THAT(refusal(root_ / "file" / "run"), HasSubstr("not a directory"));
  EXPECT_EQ(read(root_ / "file"), "text");
}

TEST_F(RunDirectoryTest, OneThatCannotBeWrittenIsRefused) {
  if (::geteuid() == 0) GTEST_SKIP() << "everything can be written by root";
  fs::create_directory(root_ / "locked");
  fs::permissions(root_ / "locked", fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_THAT(refusal(root_ / "locked"), HasSubstr("cannot be written: Permission denied"));
  EXPECT_THAT(refusal(root_ / "locked" / "a" / "b"), HasSubstr("cannot be written: Permission denied"));
}

TEST_F(RunDirectoryTest, OneThatCannotBeCreatedIsRefused) {
  EXPECT_THAT(refusal("/proc/millrace/run"), HasSubstr("/proc"));
  EXPECT_THAT(refusal(""), HasSubstr("name is empty"));
}

TEST_F(RunDirectoryTest, FailureLeavesNothingBehind) {
  const fs::path path = root_ / "a" / "b" / std::string(300, 'x');
  EXPECT_THAT(refusal(path), HasSubstr("File name too long"));
  EXPECT_EQ(entries(root_), 0);
}

TEST_F(RunDirectoryTest, CheckingFindsWhatCannotBeCreated) {
  EXPECT_THROW(check_run_directory("/proc/run", false), std::invalid_argument);
  EXPECT_THROW(check_run_directory("/proc/a/b", false), std::invalid_argument);
}

TEST_F(RunDirectoryTest, CheckingChangesNothing) {
  check_run_directory(root_ / "a" / "b", false);
  EXPECT_EQ(entries(root_), 0);
}

TEST_F(RunDirectoryTest, NumberedNamesTakeTheFirstFree) {
  EXPECT_EQ(RunDirectory::create_numbered("vgg", root_ / "runs").path(), root_ / "runs" / "vgg-1");
  fs::create_directory(root_ / "runs" / "vgg-2");
  EXPECT_EQ(RunDirectory::create_numbered("vgg", root_ / "runs").path(), root_ / "runs" / "vgg-3");
  EXPECT_EQ(RunDirectory::create_numbered("alexnet", root_ / "runs").path(), root_ / "runs" / "alexnet-1");
}

TEST_F(RunDirectoryTest, RunsStartedTogetherGetDifferentNames) {
  std::vector<fs::path> paths(8);
  std::vector<std::thread> threads;
  for (fs::path& path : paths) {
    threads.emplace_back([&path, this] { path = RunDirectory::create_numbered("job", root_ / "runs").path(); });
  }
  for (std::thread& thread : threads) thread.join();
  std::sort(paths.begin(), paths.end());
  EXPECT_EQ(std::unique(paths.begin(), paths.end()), paths.end());
  EXPECT_EQ(entries(root_ / "runs"), 8);
}

TEST_F(RunDirectoryTest, FilesAreReplacedWhole) {
  write_file(root_ / "summary.json", "a long first text");
  write_file(root_ / "summary.json", "second");
  EXPECT_EQ(read(root_ / "summary.json"), "second");
  EXPECT_EQ(entries(root_), 1);
}

TEST_F(RunDirectoryTest, FileThatCannotBeWrittenIsAFailureOfTheWorld) {
  EXPECT_THROW(write_file(root_ / "missing" / "file", "text"), std::runtime_error);
  fs::create_directory(root_ / "taken");
  EXPECT_THROW(write_file(root_ / "taken", "text"), std::runtime_error);
  EXPECT_EQ(entries(root_), 1);
}

TEST_F(RunDirectoryTest, MetricsAreOneRecordALine) {
  const RunDirectory run = RunDirectory::create(root_ / "run");
  MetricsLog log(run);
  log.append({{"step", 1}, {"loss", 2.5}});
  EXPECT_EQ(read(run.path() / "metrics.jsonl"), "{\"step\":1,\"loss\":2.5}\n");
  log.append({{"step", 2}, {"loss", nullptr}});
  EXPECT_EQ(read(run.path() / "metrics.jsonl"), "{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"loss\":null}\n");
}

TEST_F(RunDirectoryTest, MetricsAfterWhereARunGoesOnAreDropped) {
  const RunDirectory run = RunDirectory::create(root_ / "run");
  const std::string before = "{\"step\":3,\"epoch\":1.0}\n", evaluation = "{\"epoch\":1.0,\"test_loss\":2.5}\n";
  const std::string after = "{\"step\":4,\"epoch\":1.25}\n{\"epoch\":2.0,\"test_loss\":2}\n{\"ste";
  for (const bool evaluation_due : {false, true}) {
    write_file(run.path() / "metrics.jsonl", before + evaluation + after);
    const MetricsLog log(run, {4, 1.0, evaluation_due});
    EXPECT_EQ(read(run.path() / "metrics.jsonl"), evaluation_due ? before : before + evaluation);
  }
}

}  // namespace
}  // namespace millrace::report
