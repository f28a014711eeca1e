#include "millrace/plan/quantity.h"

#include <gtest/gtest.h>

namespace millrace::plan {
namespace {

TEST(Quantity, BitsAndBytesAreToldApart) {
  EXPECT_EQ(parse_quantity("100 Gb/s", Quantity::Rate), 12.5e9);
  EXPECT_EQ(parse_quantity("100 GB/s", Quantity::Rate), 100e9);
  EXPECT_EQ(parse_quantity("12 GiB", Quantity::Bytes), 12.0 * (1 << 30));
  EXPECT_EQ(parse_quantity("141 GB", Quantity::Bytes), 141e9);
  EXPECT_EQ(parse_quantity("1.3 us", Quantity::Time), 1.3e-6);
  EXPECT_EQ(parse_quantity("0", Quantity::Time), 0);
}

TEST(Quantity, WhatIsNoNumberWithItsUnitIsRefused) {
  for (const char* text : {"", "5", "us", "-1 us", "1 GB", "1us", "1 us us", "nan us", "inf s", "1e999 s", "1  "}) {
    EXPECT_FALSE(parse_quantity(text, Quantity::Time)) << text;
  }
}

TEST(Quantity, TextIsShortAndExact) {
  EXPECT_EQ(to_text(12.0 * (1 << 30), Quantity::Bytes), "12 GiB");
  EXPECT_EQ(to_text(12.5e9, Quantity::Rate), "12.5 GB/s");
  EXPECT_EQ(to_text(3e-6, Quantity::Time), "3 us");
  EXPECT_EQ(to_text(0, Quantity::Rate), "0");
  double value = 0.1234567891234;
  for (int i = 0; i < 200; ++i, value *= 1.37) {
    EXPECT_EQ(parse_quantity(to_text(value, Quantity::Rate), Quantity::Rate), value);
    EXPECT_EQ(parse_quantity(to_text(1e-9 / value, Quantity::Time), Quantity::Time), 1e-9 / value);
  }
}

}  // namespace
}  // namespace millrace::plan
