#include "millrace/data/text/tsv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "millrace/data/bad_sample.h"
#include "state/temporary_folder.h"

namespace millrace::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TsvFile parse(const std::string& text, SkipLog* skip = nullptr) { return parse_tsv(text, "t.tsv", skip); }

// What a bad row or a bad file says; "BadSample: " goes before what a policy may skip.
std::string message_of(const std::string& text) {
  try {
    parse(text);
  } catch (const BadSample& error) {
    return std::string("BadSample: ") + error.what();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(Tsv, ReadsSentencesLabelsAndLines) {
  const TsvFile file = parse("sentence\tlabel\na fine film\t1\ndull \t0\n");
  ASSERT_EQ(file.rows.size(), 2u);
  EXPECT_EQ(file.sentence(0), "a fine film");
  EXPECT_EQ(file.sentence(1), "dull ");
  EXPECT_EQ(file.rows[0].label, 1);
  EXPECT_EQ(file.rows[1].label, 0);
  EXPECT_EQ(file.rows[0].line, 2);
  EXPECT_EQ(file.rows[1].line, 3);
}

TEST(Tsv, ColumnsMayStandInAnyOrderAmongOthers) {
  const TsvFile file = parse("index\tlabel\tsource\tsentence\n7\t12\tx\tgood\n");
  EXPECT_EQ(file.sentence(0), "good");
  EXPECT_EQ(file.rows[0].label, 12);
}

TEST(Tsv, QuotesAreOrdinaryCharacters) {
  EXPECT_EQ(parse("sentence\tlabel\n\"he said \"\"no\"\t1\n").sentence(0), "\"he said \"\"no\"");
}

TEST(Tsv, CarriageReturnsAndByteOrderMarkAreNotData) {
  const TsvFile file = parse("\xEF\xBB\xBFlabel\tsentence\r\n1\tgood\r\n0\tbad\r\n\r\n");
  ASSERT_EQ(file.rows.size(), 2u);
  EXPECT_EQ(file.sentence(0), "good");
  EXPECT_EQ(file.sentence(1), "bad");
}

TEST(Tsv, TheLastLineNeedsNoEnd) { EXPECT_EQ(parse("sentence\tlabel\ngood\t1").rows.size(), 1u); }

TEST(Tsv, SentencesSurviveAMoveOfTheFile) {
  TsvFile file = parse("sentence\tlabel\na\t1");  // short enough to live inside the string object
  const TsvFile moved = std::move(file);
  EXPECT_EQ(moved.sentence(0), "a");
}

TEST(Tsv, AFileWithoutUseIsRefused) {
  EXPECT_THAT(message_of(""), HasSubstr("t.tsv: an empty file; write a header line"));
  EXPECT_THAT(message_of("\xEF\xBB\xBF\r\n\n"), HasSubstr("t.tsv: an empty file; write a header line"));
  EXPECT_EQ(message_of("sentence\tlabel\n"),
            "t.tsv: no rows that can be used among 0 after the header; write one line for each sentence");
}

TEST(Tsv, AHeaderWithoutTheColumnsIsRefused) {
  EXPECT_THAT(message_of("text\tlabel\na\t1\n"),
              HasSubstr("t.tsv:1: no column \"sentence\" among 2, the first of which is \"text\"; begin the file"));
  EXPECT_THAT(message_of("sentence\tclass\na\t1\n"), HasSubstr("t.tsv:1: no column \"label\" among 2"));
  EXPECT_EQ(message_of("label\tsentence\tlabel\n"), "t.tsv:1: columns 1 and 3 are both named \"label\"; rename one");
}

TEST(Tsv, ABadRowSaysWhereAndWhy) {
  EXPECT_EQ(message_of("sentence\tlabel\na\t1\nb\n"),
            "BadSample: t.tsv:3: 1 fields where the header has 2; write a tab between each two of them");
  EXPECT_EQ(message_of("sentence\tlabel\n\na\t1\n"),
            "BadSample: t.tsv:2: 1 fields where the header has 2; write a tab between each two of them");
  EXPECT_EQ(message_of("sentence\tlabel\na\tb\t1\n"),
            "BadSample: t.tsv:2: 3 fields where the header has 2; leave tabs out of the sentence");
  EXPECT_EQ(message_of("sentence\tlabel\n\t1\n"),
            "BadSample: t.tsv:2: the sentence is empty; write one or remove the line");
}

TEST(Tsv, ALabelIsAWholeNumberFromZero) {
  const auto label = [](const std::string& text) { return message_of("sentence\tlabel\na\t" + text + "\n"); };
  EXPECT_EQ(label("2147483647"), "no error");
  EXPECT_EQ(label("good"),
            "BadSample: t.tsv:2: label \"good\" is not a whole number; write a whole number from 0 to 2147483647");
  EXPECT_THAT(label("1.0"), HasSubstr("label \"1.0\" is not a whole number"));
  EXPECT_THAT(label(""), HasSubstr("label \"\" is not a whole number"));
  EXPECT_THAT(label("1 "), HasSubstr("label \"1 \" is not a whole number"));
  EXPECT_THAT(label("-1"), HasSubstr("label \"-1\" is negative"));
  EXPECT_THAT(label("-99999999999"), HasSubstr("label \"-99999999999\" is negative"));
  EXPECT_THAT(label("2147483648"), HasSubstr("label \"2147483648\" is too large"));
}

TEST(Tsv, SkippedRowsAreLoggedAndLeftOut) {
  SkipLog skip;
  const TsvFile file = parse("sentence\tlabel\na\t1\nb\nc\tx\nd\t0\n", &skip);
  ASSERT_EQ(file.rows.size(), 2u);
  EXPECT_EQ(file.sentence(1), "d");
  EXPECT_EQ(file.rows[1].line, 5);
  EXPECT_EQ(skip.count(), 2);
  EXPECT_THAT(skip.reasons(), ElementsAre(HasSubstr("t.tsv:3: 1 fields"), HasSubstr("t.tsv:4: label \"x\"")));
}

TEST(Tsv, AFileOfOnlyBadRowsIsRefusedEvenWhenSkipping) {
  SkipLog skip;
  EXPECT_THROW(parse("sentence\tlabel\nb\n", &skip), std::invalid_argument);
}

class TsvOnDisk : public state::TemporaryFolder {};

TEST_F(TsvOnDisk, IsReadWhole) {
  write_bytes(path("train.tsv"), "sentence\tlabel\ngood\t1\n");
  EXPECT_EQ(read_tsv(path("train.tsv"), nullptr).sentence(0), "good");
}

TEST_F(TsvOnDisk, AMissingFileOrAFolderIsRefused) {
  EXPECT_THROW(read_tsv(path("none.tsv"), nullptr), std::invalid_argument);
  EXPECT_THROW(read_tsv(folder_.string(), nullptr), std::invalid_argument);
}

}  // namespace
}  // namespace millrace::data
