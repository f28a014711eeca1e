#include "millrace/cache/entry_word.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace millrace::cache {
namespace {

TEST(EntryWord, IsReadByManyOrOwnedByOne) {
  EntryWord word;
  EXPECT_EQ(word.enter(), Place::Nowhere);
  EXPECT_EQ(word.own(), Place::Nowhere);
  EXPECT_EQ(word.own(), std::nullopt);
  EXPECT_EQ(word.enter(), Place::Busy);
  word.publish(Place::Disk);
  EXPECT_EQ(word.enter(), Place::Disk);
  EXPECT_EQ(word.enter(), Place::Disk);
  EXPECT_EQ(word.own(), std::nullopt);
  word.leave();
  EXPECT_EQ(word.own(), std::nullopt);
  word.leave();
  EXPECT_EQ(word.own(), Place::Disk);
}

TEST(EntryWord, TheLastThatFindsItBadOwnsIt) {
  EntryWord word;
  word.own();
  word.publish(Place::Memory);
  word.enter();
  word.enter();
  EXPECT_FALSE(word.leave_or_own());
  EXPECT_TRUE(word.leave_or_own());
  EXPECT_EQ(word.enter(), Place::Busy);
}

TEST(EntryWord, KeepsOwnersAndReadersApart) {
  EntryWord word;
  int64_t first = 0, second = 0;  // equal whenever nobody owns the word
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 5000; ++turn) {
        if (word.own()) {
          ++first;
          ++second;
          word.publish(Place::Memory);
        }
        if (word.enter() != Place::Memory) continue;
        EXPECT_EQ(first, second);
        if (turn % 2 == 0) {
          word.leave();
        } else if (word.leave_or_own()) {
          word.publish(Place::Memory);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(first, 0);
}

}  // namespace
}  // namespace millrace::cache
