#include "millrace/report/units.h"

#include <gtest/gtest.h>

#include <cmath>

namespace millrace::report {
namespace {

TEST(Units, BytesUseBinaryPrefixes) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(812), "812 B");
  EXPECT_EQ(human_bytes(1536), "1.50 KiB");
  EXPECT_EQ(human_bytes(int64_t{1004} << 20), "0.98 GiB");
  EXPECT_EQ(human_bytes(int64_t{999} << 20), "999 MiB");
  EXPECT_EQ(human_bytes(int64_t{23} << 30), "23.0 GiB");
}

TEST(Units, CountsAreGrouped) {
  EXPECT_EQ(human_count(0), "0");
  EXPECT_EQ(human_count(999), "999");
  EXPECT_EQ(human_count(1000), "1,000");
  EXPECT_EQ(human_count(1281167), "1,281,167");
  EXPECT_EQ(human_count(-123456), "-123,456");
}

TEST(Units, LargeCountsUseDecimalPrefixes) {
  EXPECT_EQ(human_large(999), "999");
  EXPECT_EQ(human_large(25557032), "25.6 M");
  EXPECT_EQ(human_large(138357544), "138 M");
  EXPECT_EQ(human_large(999999), "1.00 M");
}

TEST(Units, DurationsPickTheirUnit) {
  EXPECT_EQ(human_duration(0.00085), "850 us");
  EXPECT_EQ(human_duration(0.0123), "12.3 ms");
  EXPECT_EQ(human_duration(0.99999), "1.00 s");
  EXPECT_EQ(human_duration(4.2), "4.20 s");
  EXPECT_EQ(human_duration(59.96), "1:00");
  EXPECT_EQ(human_duration(7389), "2:03:09");
  EXPECT_EQ(human_duration(NAN), "-");
}

TEST(Units, ClockAlwaysHasMinutes) {
  EXPECT_EQ(human_clock(3.6), "0:04");
  EXPECT_EQ(human_clock(65), "1:05");
  EXPECT_EQ(human_clock(-1), "0:00");
  EXPECT_EQ(human_clock(INFINITY), "-:--");
}

TEST(Units, NumbersHaveThreeDigits) {
  EXPECT_EQ(human_number(0), "0");
  EXPECT_EQ(human_number(0.1234), "0.123");
  EXPECT_EQ(human_number(4.567), "4.57");
  EXPECT_EQ(human_number(99.96), "100");
  EXPECT_EQ(human_number(4321.4), "4,321");
  EXPECT_EQ(human_number(1.2345e25), "1.23e+25");
  EXPECT_EQ(human_percent(0.9123), "91.2%");
}

TEST(Units, LossesHaveSixDigitsAtMost) {
  EXPECT_EQ(human_loss(0.02346), "0.0235");
  EXPECT_EQ(human_loss(99.99999), "100");
  EXPECT_EQ(human_loss(-1234567.8), "-1.23457e+06");
  EXPECT_EQ(human_loss(1.5e30), "1.5e+30");
  EXPECT_EQ(human_loss(INFINITY), "inf");
  EXPECT_EQ(human_loss(-NAN), "not a number");
}

TEST(Units, OneIsNotAPlural) {
  EXPECT_EQ(counted(0, "step"), "0 steps");
  EXPECT_EQ(counted(1, "step"), "1 step");
  EXPECT_EQ(counted(1000, "step"), "1,000 steps");
}

}  // namespace
}  // namespace millrace::report
