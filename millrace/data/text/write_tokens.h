// Text as a file of tokens, for language modelling: what files/token_files.h reads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "millrace/data/text/wordpiece.h"

namespace millrace::data {

struct WrittenTokens {
  int64_t texts = 0;
  int64_t tokens = 0;  // with a [SEP] behind each text
  int64_t bytes = 0;
};

// The sentences of a .tsv; of any other file the texts between empty lines. `destination` is a new file, and appears
// whole or not at all. Tokens of 2 bytes need a vocabulary of at most 65,536. `progress` is called with bytes of the
// source done and in all.
WrittenTokens write_tokens(const std::string& source, const std::string& destination, const WordPiece& tokenizer,
                           int token_bytes, const std::function<void(int64_t done, int64_t total)>& progress);

}  // namespace millrace::data
