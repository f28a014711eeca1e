#include "millrace/job/text.h"

#include <gtest/gtest.h>

namespace millrace::job {
namespace {

TEST(Text, WholeNumbersAreTakenWholeOrNotAtAll) {
  int64_t value = 0;
  EXPECT_EQ(parse_number("-12", value), NumberFault::Ok);
  EXPECT_EQ(value, -12);
  for (const char* text : {"", "-", "+1", "1.0", "1e3", "0x10", "12a", " 1", "1 ", "--1", "1_000"}) {
    EXPECT_EQ(parse_number(text, value), NumberFault::NotANumber) << text;
  }
}

TEST(Text, WholeNumbersThatDoNotFitAreTooLarge) {
  int small = 0;
  int64_t large = 0;
  uint64_t positive = 0;
  EXPECT_EQ(parse_number("2147483648", small), NumberFault::TooLarge);
  EXPECT_EQ(parse_number("9223372036854775808", large), NumberFault::TooLarge);
  EXPECT_EQ(parse_number("18446744073709551615", positive), NumberFault::Ok);
  EXPECT_EQ(positive, 18446744073709551615u);
  EXPECT_EQ(parse_number("18446744073709551616", positive), NumberFault::TooLarge);
  EXPECT_EQ(parse_number("-1", positive), NumberFault::Negative);
}

TEST(Text, RealNumbersAreFiniteAndTakenWhole) {
  double value = 0;
  EXPECT_EQ(parse_number("3.0517578125e-05", value), NumberFault::Ok);
  EXPECT_EQ(value, 1.0 / 32768);
  for (const char* text : {"", "nan", "inf", "-infinity", "0.1x", "1/3", "0.1 ", "1e", "1,5"}) {
    EXPECT_EQ(parse_number(text, value), NumberFault::NotANumber) << text;
  }
  EXPECT_EQ(parse_number("1e999", value), NumberFault::TooLarge);
}

TEST(Text, ASwapOfNeighboursIsOneEdit) {
  EXPECT_EQ(edit_distance("bacth", "batch"), 1);
  EXPECT_EQ(edit_distance("optimzer", "optimizer"), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("CPU", "cpu"), 0);
}

TEST(Text, NearestIsTheWordWithFewestEditsIfAnyIsClose) {
  EXPECT_EQ(nearest("resnet5O", {"resnet18", "resnet50", "vgg16"}), "resnet50");
  EXPECT_EQ(nearest("batch_size", {"name", "batch"}), "batch");
  EXPECT_EQ(nearest("transformer", {"resnet18", "resnet50", "vgg16"}), "");
  EXPECT_EQ(nearest(std::string(100000, 'a'), {"batch"}), "");
}

TEST(Text, WhatIsQuotedStaysOnOneLine) {
  EXPECT_EQ(in_quotes("a\nb\x01"), "\"a\\nb\\x01\"");
  EXPECT_LT(in_quotes(std::string(1000, 'a')).size(), 100u);
}

}  // namespace
}  // namespace millrace::job
