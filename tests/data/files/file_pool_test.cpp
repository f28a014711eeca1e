#include "millrace/data/files/file_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/files/stored_sets.h"

namespace millrace::data {
namespace {

using testing::HasSubstr;

class FilePoolTest : public StoredSets {
 protected:
  std::vector<std::string> files(int count) const {
    std::vector<std::string> paths;
    for (int i = 0; i < count; ++i) {
      paths.push_back(path(std::to_string(i)));
      write_bytes(paths.back(), "file " + std::to_string(i));
    }
    return paths;
  }
  static std::string whole(const OpenFile& file) {
    std::string bytes(static_cast<size_t>(file.size()), '\0');
    EXPECT_EQ(file.read_at(0, bytes.data(), bytes.size()), bytes.size());
    return bytes;
  }
};

TEST_F(FilePoolTest, AFileIsOpenedOnceWhileThereIsRoom) {
  const FilePool pool(files(3), 3);
  const auto* first = pool.get(0).get();
  pool.get(1);
  pool.get(2);
  EXPECT_EQ(pool.get(0).get(), first);
}

TEST_F(FilePoolTest, TheOldestMakesRoomAndComesBack) {
  const FilePool pool(files(5), 2);
  const auto held = pool.get(0);
  for (size_t round = 0; round < 3; ++round) {
    for (size_t i = 0; i < 5; ++i) EXPECT_EQ(whole(*pool.get(i)), "file " + std::to_string(i));
  }
  EXPECT_EQ(whole(*held), "file 0");  // whoever holds it can go on reading
}

TEST_F(FilePoolTest, ReadsAreShortOnlyAtTheEnd) {
  const FilePool pool(files(1));
  char bytes[10] = {};
  EXPECT_EQ(pool.get(0)->read_at(2, bytes, 10), 4u);
  EXPECT_STREQ(bytes, "le 0");
  EXPECT_EQ(pool.get(0)->read_at(100, bytes, 10), 0u);
}

TEST_F(FilePoolTest, NamesAFileThatIsGone) {
  const FilePool pool({path("gone")});
  EXPECT_THAT(message_of<std::runtime_error>([&] { pool.get(0); }), HasSubstr("gone: cannot be opened: No such file"));
}

}  // namespace
}  // namespace millrace::data
