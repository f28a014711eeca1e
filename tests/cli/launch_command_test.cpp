#include "cli/launch_command.h"

#include <gmock/gmock.h>

namespace millrace::cli {
namespace {

using testing::ElementsAre;

TEST(LaunchCommand, WordsAreThoseOfAShell) {
  EXPECT_THAT(split_words(" mpirun  -x 'A B' \"c\\\"d\" e\\ f '' g'h'\"i\" '\\n'"),
              ElementsAre("mpirun", "-x", "A B", "c\"d", "e f", "", "ghi", "\\n"));
}

}  // namespace
}  // namespace millrace::cli
