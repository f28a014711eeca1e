#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/profile/profile.h"

namespace millrace::profile {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

Profile measured(int64_t rows, double forward_s) {
  Profile profile;
  profile.rows = rows;
  profile.operators.resize(1);
  Operator& op = profile.operators[0];
  op.name = "conv";
  op.forward.median = forward_s;
  op.update.median = 0.5;
  op.output_bytes = 100 * rows;
  op.kept_bytes = 30 * rows;
  op.param_bytes = 77;
  return profile;
}

TEST(AtRows, OneProfileIsInProportion) {
  const Profile half = at_rows({measured(8, 4)}, 4);
  EXPECT_EQ(half.rows, 4);
  EXPECT_DOUBLE_EQ(half.operators[0].forward.median, 2);
  EXPECT_DOUBLE_EQ(half.operators[0].update.median, 0.5);
  EXPECT_EQ(half.operators[0].output_bytes, 400);
  EXPECT_EQ(half.operators[0].kept_bytes, 120);
  EXPECT_EQ(half.operators[0].param_bytes, 77);
}

TEST(AtRows, BetweenTwoTimesLieOnALine) {
  const std::vector<Profile> two{measured(16, 5), measured(4, 2)};  // in any order
  EXPECT_EQ(at_rows(two, 16), two[0]);
  EXPECT_DOUBLE_EQ(at_rows(two, 8).operators[0].forward.median, 3);
  EXPECT_DOUBLE_EQ(at_rows(two, 32).operators[0].forward.median, 9);
  EXPECT_DOUBLE_EQ(at_rows(two, 2).operators[0].forward.median, 1.5);
}

TEST(AtRows, OutsideItIsNeverLessThanInProportion) {
  // A line through these would be below zero for one row.
  EXPECT_DOUBLE_EQ(at_rows({measured(4, 1), measured(8, 5)}, 1).operators[0].forward.median, 0.25);
}

TEST(AtRows, RefusesProfilesOfDifferentModels) {
  Profile other = measured(4, 1);
  other.operators[0].name = "linear";
  EXPECT_THAT(
      [&] {
        at_rows({measured(8, 1), other}, 2);
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("not of one model: conv and linear")));
  EXPECT_THROW(at_rows({}, 2), std::invalid_argument);
  EXPECT_THROW(at_rows({measured(0, 1)}, 2), std::invalid_argument);
}

}  // namespace
}  // namespace millrace::profile
