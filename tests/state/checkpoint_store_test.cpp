#include "millrace/state/checkpoint_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>

#include "state/small_checkpoints.h"
#include "state/temporary_folder.h"

namespace millrace::state {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using testing::ThrowsMessage;
using Names = std::vector<std::string>;

class Store : public TemporaryFolder {
 protected:
  void SetUp() override {
    TemporaryFolder::SetUp();
    store_ = CheckpointStore(folder_ / "run" / "checkpoints");
  }

  std::string in_store(const std::string& name) const { return (store_.directory() / name).string(); }
  Names entries() const {
    Names names;
    for (const auto& entry : fs::directory_iterator(store_.directory())) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  Names listed() const {
    Names names;
    for (const fs::path& path : store_.list()) names.push_back(path.filename());
    return names;
  }
  void damage(const std::string& name, const std::string& file = "velocity-0.safetensors") const {
    const std::string place = in_store(name) + "/" + file;
    std::string bytes = read_bytes(place);
    fs::remove(place);  // best-step-<n> may have it too
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    write_bytes(place, bytes);
  }
  // The name of what is chosen.
  std::string chosen(const fs::path& path, bool fallback = false) {
    damages_.clear();
    const Chosen chosen = choose_checkpoint(path, fallback, [&](const std::string& line) { damages_.push_back(line); });
    EXPECT_EQ(chosen.manifest, read_manifest(chosen.directory));
    return chosen.directory.filename();
  }
  template <typename Message>
  void expect_refused(const fs::path& path, const Message& message, bool fallback = false) {
    EXPECT_THAT([&] { chosen(path, fallback); },
                ThrowsMessage<std::invalid_argument>(AllOf(message, Not(HasSubstr("\n")))));
  }

  CheckpointStore store_{""};
  Names damages_;
};

TEST_F(Store, HasNothingBeforeTheFirst) {
  EXPECT_THAT(store_.list(), ElementsAre());
  EXPECT_EQ(store_.best(), std::nullopt);
  store_.remove_old(1);
  store_.remove_leftovers();
  store_.give_up(5);
  EXPECT_FALSE(fs::exists(folder_ / "run"));
}

TEST_F(Store, ACheckpointIsThereOnceItIsFinished) {
  const fs::path begun = store_.begin(500);
  EXPECT_TRUE(fs::is_empty(begun));
  EXPECT_EQ(begun, store_.pending(500));
  EXPECT_THAT([this] { store_.finish(500); }, ThrowsMessage<std::runtime_error>(HasSubstr("has no manifest.json yet")));
  write_checkpoint(begun, small_state());
  EXPECT_THAT(listed(), ElementsAre());
  EXPECT_EQ(store_.finish(500), store_.directory() / "step-00000500");
  EXPECT_EQ(store_.path(500), store_.directory() / "step-00000500");
  EXPECT_THAT(entries(), ElementsAre("step-00000500"));
  EXPECT_THAT(verify(in_store("step-00000500")), ElementsAre());
}

TEST_F(Store, ListsByNumber) {
  for (const char* name :
       {"step-00000010", "step-9", "step-123456789", "step-00000100", "step-", "step-1x", "step--1", "step-+1",
        "best-step-7", ".step-00000011.part", ".removed-step-00000001", "other", "step-99999999999999999999"}) {
    fs::create_directories(in_store(name));
  }
  write_bytes(in_store("step-00000050"), "a file");
  fs::create_directory_symlink(in_store("step-9"), in_store("step-60"));
  EXPECT_THAT(listed(), ElementsAre("step-9", "step-00000010", "step-00000100", "step-123456789"));
  EXPECT_EQ(step_of("runs/a/checkpoints/step-00000100"), 100);
  EXPECT_EQ(step_of("best-step-00000100"), 100);
  EXPECT_EQ(step_of("runs/step-5/x"), std::nullopt);
}

TEST_F(Store, BeginsAnewWhereAProcessWasKilled) {
  write_bytes((store_.begin(7) / "weights-0.safetensors").string(), "half");
  EXPECT_TRUE(fs::is_empty(store_.begin(7)));
}

TEST_F(Store, AStepThatIsThereIsReplaced) {
  save(store_, 7);
  State other = small_state();
  other.step = 7;
  other.samples = 1;
  write_checkpoint(store_.begin(7), other);
  store_.finish(7);
  EXPECT_THAT(entries(), ElementsAre("step-00000007"));
  EXPECT_EQ(read_manifest(in_store("step-00000007")).samples, 1);
}

TEST_F(Store, GivingUpLeavesTheOthers) {
  save(store_, 1);
  write_bytes((store_.begin(2) / "weights-0.safetensors").string(), "half");
  store_.give_up(2);
  store_.give_up(3);
  EXPECT_THAT(entries(), ElementsAre("step-00000001"));
}

TEST_F(Store, OldOnesGo) {
  for (int64_t step : {5, 100, 20, 99999999, 100000000}) save(store_, step);
  store_.remove_old(3);
  EXPECT_THAT(entries(), ElementsAre("step-00000100", "step-100000000", "step-99999999"));
  store_.remove_old(7);
  EXPECT_THAT(listed(), ElementsAre("step-00000100", "step-99999999", "step-100000000"));
  // What an interrupted removal left under the hidden name is in nobody's way.
  fs::create_directories(in_store(".removed-step-00000100/x"));
  store_.remove_old(1);
  EXPECT_THAT(entries(), ElementsAre("step-100000000"));
}

TEST_F(Store, OneIsRemovedByItsPath) {
  save(store_, 1);
  store_.remove(save(store_, 2));
  store_.remove(in_store("step-00000009"));
  EXPECT_THAT(entries(), ElementsAre("step-00000001"));
}

TEST_F(Store, TheBestIsKeptWhenItsStepGoes) {
  save(store_, 1);
  store_.keep_as_best(save(store_, 2));
  struct stat one, two;
  ASSERT_EQ(::stat(in_store("step-00000002/weights-0.safetensors").c_str(), &one), 0);
  ASSERT_EQ(::stat(in_store("best-step-00000002/weights-0.safetensors").c_str(), &two), 0);
  EXPECT_EQ(one.st_ino, two.st_ino);  // no second copy
  save(store_, 3);
  store_.remove_old(1);
  EXPECT_THAT(entries(), ElementsAre("best-step-00000002", "step-00000003"));
  EXPECT_EQ(store_.best(), store_.directory() / "best-step-00000002");
  EXPECT_THAT(verify(*store_.best()), ElementsAre());
}

TEST_F(Store, TheNewBestReplacesTheFormer) {
  const fs::path two = save(store_, 2), three = save(store_, 3);
  store_.keep_as_best(three);
  store_.keep_as_best(three);
  EXPECT_THAT(entries(), ElementsAre("best-step-00000003", "step-00000002", "step-00000003"));
  store_.keep_as_best(two);
  EXPECT_THAT(entries(), ElementsAre("best-step-00000002", "step-00000002", "step-00000003"));
  EXPECT_THAT(verify(three), ElementsAre());
}

TEST_F(Store, TheBestIsCopiedWhereItCannotBeLinked) {
  const fs::path elsewhere = "/dev/shm/millrace-store-test-" + std::to_string(::getpid());
  fs::create_directories(store_.directory());
  std::error_code error;
  struct stat here, there;
  if (!fs::create_directory(elsewhere, error) || ::stat(store_.directory().c_str(), &here) != 0 ||
      ::stat(elsewhere.c_str(), &there) != 0 || here.st_dev == there.st_dev) {
    fs::remove(elsewhere, error);
    GTEST_SKIP() << "needs a second file system at /dev/shm";
  }
  CheckpointStore other(elsewhere);
  store_.keep_as_best(save(other, 2));
  fs::remove_all(elsewhere);
  EXPECT_THAT(entries(), ElementsAre("best-step-00000002"));
  EXPECT_THAT(verify(in_store("best-step-00000002")), ElementsAre());
}

TEST_F(Store, ABestThatIsNotThereLeavesTheFormer) {
  store_.keep_as_best(save(store_, 2));
  EXPECT_THAT([this] { store_.keep_as_best(in_store("step-00000009")); },
              ThrowsMessage<std::runtime_error>(StartsWith(in_store("step-00000009") + ": ")));
  EXPECT_THAT([this] { store_.keep_as_best(folder_); }, testing::Throws<std::runtime_error>());
  EXPECT_THAT(entries(), ElementsAre("best-step-00000002", "step-00000002"));
}

TEST_F(Store, LeftoversGo) {
  save(store_, 1);
  store_.keep_as_best(save(store_, 2));
  for (const char* name : {".step-00000003.part/x", ".removed-step-00000001/x", ".best-step-00000001.part/x",
                           "best-step-00000001/x", ".of-a-user/x"}) {
    fs::create_directories(in_store(name));
  }
  store_.remove_leftovers();
  EXPECT_THAT(entries(), ElementsAre(".of-a-user", "best-step-00000002", "step-00000001", "step-00000002"));
}

TEST_F(Store, DirectoriesAreAsTheUmaskSays) {
  const mode_t before = ::umask(007);
  store_.keep_as_best(save(store_, 1));
  ::umask(before);
  for (const char* name : {"", "step-00000001", "best-step-00000001"}) {
    struct stat status;
    ASSERT_EQ(::stat(in_store(name).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0770u) << name;
  }
}

TEST_F(Store, APlaceThatCannotBeWrittenIsNamed) {
  write_bytes(path("file"), "");
  CheckpointStore store(folder_ / "file" / "checkpoints");
  EXPECT_THAT([&] { store.begin(1); },
              ThrowsMessage<std::runtime_error>(AllOf(StartsWith(path("file/checkpoints/.step-00000001.part")),
                                                      HasSubstr("cannot be created: Not a directory"))));
  EXPECT_THAT(store.list(), ElementsAre());
  store.remove_old(0);
  store.remove_leftovers();
  EXPECT_TRUE(fs::exists(path("file")));
}

TEST_F(Store, AFullDiskLeavesTheOthersUnharmed) {
  store_.keep_as_best(save(store_, 1));
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {300, 300};  // bytes of a file: weights do not fit
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int code = 1;
    try {
      save(store_, 2);
    } catch (const std::runtime_error&) {
      store_.give_up(2);
      code = 0;
    }
    ::_exit(code);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_THAT(entries(), ElementsAre("best-step-00000001", "step-00000001"));
  EXPECT_EQ(chosen(folder_ / "run"), "step-00000001");
}

TEST_F(Store, TheNewestIsChosen) {
  for (int64_t step : {99999999, 100000000, 5}) save(store_, step);
  for (const fs::path& path : {folder_ / "run", folder_ / "run" / "", store_.directory(), store_.directory() / ""}) {
    EXPECT_EQ(chosen(path), "step-100000000") << path;
  }
  EXPECT_EQ(chosen(in_store("step-00000005")), "step-00000005");
  EXPECT_EQ(chosen(in_store("step-00000005/")), "step-00000005");
  fs::rename(in_store("step-00000005"), path("copied"));
  EXPECT_EQ(chosen(path("copied")), "copied");
  store_.keep_as_best(in_store("step-100000000"));
  EXPECT_EQ(chosen(store_.directory()), "step-100000000");
  EXPECT_EQ(chosen(in_store("best-step-100000000")), "best-step-100000000");
}

TEST_F(Store, WhereThereIsNoneItIsSaid) {
  expect_refused(path("no"), path("no") + ": no such directory; name a run's directory or one of its checkpoints");
  write_bytes(path("file"), "");
  expect_refused(path("file"), StartsWith(path("file") + ": is not a directory"));
  expect_refused(folder_, StartsWith(folder_.string() + ": holds no checkpoint; "));
  store_.begin(5);
  expect_refused(folder_ / "run", HasSubstr("run: holds no checkpoint; "));
}

TEST_F(Store, ADamagedOneIsRefusedAndTheGoodOneBeforeItNamed) {
  for (int64_t step : {400, 450, 500}) save(store_, step);
  const auto velocity = std::string("step-00000500/velocity-0.safetensors");
  const auto bytes = fs::file_size(in_store(velocity));
  fs::resize_file(in_store(velocity), 17);
  expect_refused(folder_ / "run", in_store("step-00000500") +
                                      ": velocity-0.safetensors has 17 bytes, the manifest says " +
                                      std::to_string(bytes) + "; the one before it is good: --resume " +
                                      in_store("step-00000450") + ", or write --fallback");
  damage("step-00000450");
  expect_refused(in_store("step-00000500"),
                 HasSubstr("; the newest good one before it: --resume " + in_store("step-00000400") + ", or write"));
  damage("step-00000400");
  damage("step-00000400", "job.yaml");
  expect_refused(folder_ / "run", HasSubstr("; none before it is good"));
  expect_refused(in_store("step-00000400"), AllOf(StartsWith(in_store("step-00000400") + ": job.yaml has checksum "),
                                                  HasSubstr(" (and 1 more file is damaged); there is none before it")));
}

TEST_F(Store, WithFallbackDamagedOnesArePassedOver) {
  for (int64_t step : {400, 450, 500, 550}) save(store_, step);
  damage("step-00000550");
  fs::remove(in_store("step-00000500/manifest.json"));
  EXPECT_EQ(chosen(folder_ / "run", true), "step-00000450");
  EXPECT_THAT(damages_, ElementsAre(StartsWith(in_store("step-00000550") + ": velocity-0.safetensors has checksum "),
                                    in_store("step-00000500") + ": manifest.json is missing"));
  EXPECT_EQ(chosen(in_store("step-00000500"), true), "step-00000450");
  EXPECT_EQ(damages_.size(), 1u);
  EXPECT_EQ(chosen(in_store("step-00000450"), true), "step-00000450");
  EXPECT_EQ(damages_.size(), 0u);
  damage("step-00000450");
  damage("step-00000400");
  expect_refused(folder_ / "run", HasSubstr("all 4 checkpoints are damaged"), true);
  expect_refused(in_store("step-00000400"), HasSubstr("its only checkpoint is damaged"), true);
}

TEST_F(Store, TheBestStandsInForDamagedOnes) {
  store_.keep_as_best(save(store_, 400));
  for (int64_t step : {450, 500}) save(store_, step);
  store_.remove_old(2);
  damage("step-00000500");
  damage("step-00000450");
  EXPECT_EQ(chosen(folder_ / "run", true), "best-step-00000400");
}

}  // namespace
}  // namespace millrace::state
