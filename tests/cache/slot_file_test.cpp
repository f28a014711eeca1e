#include "millrace/cache/slot_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "cache/sample_entries.h"
#include "state/temporary_folder.h"

namespace millrace::cache {
namespace {

class SlotFileTest : public state::TemporaryFolder {
 protected:
  static std::vector<std::byte> bytes_of(int64_t slot) { return entry_of({}, slot, 0, 10000); }
  static constexpr SlotLayout kLayout{100, 3 * SlotFile::kPage, 1};
};

TEST_F(SlotFileTest, HoldsWhatWasWritten) {
  for (const auto& file : {SlotFile::in_memory(), SlotFile::on_disk(folder_)}) {
    for (int64_t slot = 99; slot >= 0; --slot) ASSERT_EQ(file->write(kLayout, slot, bytes_of(slot)), 0);
    for (int64_t slot = 0; slot < 100; ++slot) {
      std::vector<std::byte> read(10000);
      ASSERT_TRUE(file->read(kLayout, slot, read));
      EXPECT_EQ(read, bytes_of(slot));
    }
  }
}

TEST_F(SlotFileTest, MemoryIsReadWithoutACopy) {
  const auto file = SlotFile::in_memory();
  ASSERT_EQ(file->write(kLayout, 42, bytes_of(42)), 0);
  const std::byte* view = file->view(kLayout, 42);
  ASSERT_NE(view, nullptr);
  EXPECT_TRUE(std::ranges::equal(std::span(view, 10000), bytes_of(42)));
  ASSERT_EQ(file->write(kLayout, 99, bytes_of(99)), 0);  // beyond what the files were when they were mapped
  EXPECT_TRUE(std::ranges::equal(std::span(file->view(kLayout, 99), 10000), bytes_of(99)));

  ASSERT_TRUE(file->clear());
  const SlotLayout other{1000, 5 * SlotFile::kPage, 2};
  ASSERT_EQ(file->write(other, 999, bytes_of(7)), 0);
  EXPECT_TRUE(std::ranges::equal(std::span(file->view(other, 999), 10000), bytes_of(7)));
}

TEST_F(SlotFileTest, TakesTheSpaceOfItsSlotsOnly) {
  const auto file = SlotFile::in_memory();
  const std::vector<int> descriptors = descriptors_of(kMemoryFiles);
  ASSERT_EQ(descriptors.size(), SlotFile::kFiles);
  for (const int64_t slot : {3, 50, 99}) ASSERT_EQ(file->write(kLayout, slot, bytes_of(slot)), 0);
  EXPECT_EQ(bytes_taken_by(descriptors), 3 * kLayout.slot_bytes);
  ASSERT_TRUE(file->release(kLayout, 50));
  EXPECT_EQ(bytes_taken_by(descriptors), 2 * kLayout.slot_bytes);
  ASSERT_TRUE(file->clear());
  EXPECT_EQ(bytes_taken_by(descriptors), 0);
}

TEST_F(SlotFileTest, HasNoNameInItsDirectory) {
  const auto file = SlotFile::on_disk(folder_ / "made" / "for" / "it");
  ASSERT_EQ(file->write(kLayout, 0, bytes_of(0)), 0);
  EXPECT_EQ(files_in(folder_ / "made" / "for" / "it"), 0u);
  const Descriptor by_name = make_disk_file_by_name(folder_ / "made" / "for" / "it");
  EXPECT_GE(by_name.get(), 0);
  EXPECT_EQ(files_in(folder_ / "made" / "for" / "it"), 0u);
}

TEST_F(SlotFileTest, ADirectoryThatCannotBeIsSaid) {
  write_bytes(path("file"), "x");
  try {
    SlotFile::on_disk(folder_ / "file" / "below");
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find(path("file")), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace millrace::cache
