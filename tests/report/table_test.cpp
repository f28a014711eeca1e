#include "millrace/report/table.h"

#include <gtest/gtest.h>

namespace millrace::report {
namespace {

TEST(Table, NumbersAreRightAlignedAndTextLeft) {
  Table table({"operator", "ms", "share"});
  table.add({"conv", "12.5", "61.0%"});
  table.add({"batch norm", "8.0", "-"});
  EXPECT_EQ(table.str(),
            "operator      ms  share\n"
            "----------  ----  -----\n"
            "conv        12.5  61.0%\n"
            "batch norm   8.0      -\n");
}

TEST(Table, LinesUpWhateverTheAlphabet) {
  Table table;
  table.add({"größe", "a"});
  table.add({"层", "b"});
  table.add({"plain", "c"});
  EXPECT_EQ(table.str(), "größe  a\n层     b\nplain  c\n");
}

TEST(Table, ShortRowsAndRulesKeepTheColumns) {
  Table table({"name", "n"});
  table.add({"a", "1"});
  table.add({"b"});
  table.add_rule();
  table.add({"sum", "100"});
  EXPECT_EQ(table.str(),
            "name    n\n"
            "----  ---\n"
            "a       1\n"
            "b\n"
            "----  ---\n"
            "sum   100\n");
}

TEST(Table, WidthCountsColumnsNotBytes) {
  EXPECT_EQ(display_width(""), 0);
  EXPECT_EQ(display_width("abc"), 3);
  EXPECT_EQ(display_width("größe"), 5);
  EXPECT_EQ(display_width("e\u0301"), 1);
  EXPECT_EQ(display_width("层"), 2);
  EXPECT_EQ(display_width("█░"), 2);
}

TEST(Table, BrokenTextIsMeasuredWithoutReadingPastIt) {
  EXPECT_EQ(display_width("\xE5"), 1);
  EXPECT_EQ(display_width("a\xF0\x9F"), 2);
  EXPECT_EQ(display_width("\xFF\xFE"), 1);
}

TEST(Table, TextIsCutBetweenCharacters) {
  EXPECT_EQ(fit_width("größe", 3), "grö");
  EXPECT_EQ(fit_width("层层", 3), "层");
  EXPECT_EQ(fit_width("abc", 10), "abc");
  EXPECT_EQ(fit_width("abc", 0), "");
}

}  // namespace
}  // namespace millrace::report
