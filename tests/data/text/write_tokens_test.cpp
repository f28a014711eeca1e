#include "millrace/data/text/write_tokens.h"

#include <gmock/gmock.h>

#include "millrace/data/bad_sample.h"
#include "millrace/data/files/token_files.h"
#include "state/temporary_folder.h"

namespace millrace::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

class WriteTokens : public state::TemporaryFolder {
 protected:
  static WordPiece tokenizer() {
    return {Vocabulary("[PAD]\n[UNK]\n[CLS]\n[SEP]\ngood\nbad\n##ly\nfilm\n", "vocab"), "vocab"};
  }
  std::vector<uint32_t> tokens(const std::string& file, int token_bytes) const {
    const TokenFiles files(path(file), token_bytes);
    std::vector<uint32_t> all(static_cast<size_t>(files.tokens(0)));
    files.read(0, 0, all);
    return all;
  }
};

TEST_F(WriteTokens, TextsEndAtEmptyLines) {
  write_bytes(path("a.txt"), "\n\nGood film\nbad\r\n \t\r\n\nbadly\n[CLS]");
  int64_t last = 0;
  const WrittenTokens written =
      write_tokens(path("a.txt"), path("a.bin"), tokenizer(), 2, [&](int64_t done, int64_t /*total*/) { last = done; });
  EXPECT_EQ(written.texts, 2);
  EXPECT_EQ(written.tokens, 8);
  EXPECT_EQ(written.bytes, 16);
  EXPECT_EQ(last, static_cast<int64_t>(std::filesystem::file_size(path("a.txt"))));
  EXPECT_THAT(tokens("a.bin", 2), ElementsAre(4, 7, 5, 3, 5, 6, 2, 3));
}

TEST_F(WriteTokens, SentencesOfATableAreTexts) {
  write_bytes(path("a.tsv"), "sentence\tlabel\ngood\t1\nbad film\t0\n");
  const WrittenTokens written = write_tokens(path("a.tsv"), path("a.bin"), tokenizer(), 4, {});
  EXPECT_EQ(written.texts, 2);
  EXPECT_THAT(tokens("a.bin", 4), ElementsAre(4, 3, 5, 7, 3));
}

TEST_F(WriteTokens, WhatCannotWorkIsRefusedAndLeavesNothing) {
  write_bytes(path("a.txt"), "good\n");
  write_bytes(path("blank.txt"), " \n\n");
  write_bytes(path("bad.tsv"), "sentence\tlabel\ngood\t1\nbad\n");
  write_bytes(path("there.bin"), "mine");
  const auto refuses = [&](const std::string& from, const std::string& to, const std::string& says) {
    EXPECT_THAT([&] { write_tokens(path(from), path(to), tokenizer(), 2, {}); },
                ThrowsMessage<std::invalid_argument>(HasSubstr(says)));
  };
  refuses("nowhere.txt", "b.bin", "nowhere.txt: there is no such file");
  refuses("a.txt", "there.bin", "there.bin: is there already");
  refuses("blank.txt", "b.bin", "blank.txt: no text in it");
  refuses("bad.tsv", "b.bin", "bad.tsv:3");
  EXPECT_EQ(read_bytes(path("there.bin")), "mine");
  EXPECT_FALSE(std::filesystem::exists(path("b.bin")));
  const auto entries = std::distance(std::filesystem::directory_iterator(folder_), {});
  EXPECT_EQ(entries, 4) << "nothing half-written stays";
}

TEST_F(WriteTokens, TwoBytesMustTellAllTokensApart) {
  std::string lines = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n";
  for (int i = 4; i < 65'537; ++i) lines += "w" + std::to_string(i) + "\n";
  const WordPiece large(Vocabulary(lines, "vocab"), "vocab");
  write_bytes(path("a.txt"), "w65536\n");
  EXPECT_THAT([&] { write_tokens(path("a.txt"), path("a.bin"), large, 2, {}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("65537 tokens")));
  write_tokens(path("a.txt"), path("a.bin"), large, 4, {});
  EXPECT_THAT(tokens("a.bin", 4), ElementsAre(65'536, 3));
}

}  // namespace
}  // namespace millrace::data
