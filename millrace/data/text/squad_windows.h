// Questions as BERT reads them: [CLS] question [SEP] piece of the context [SEP]. A context that is too long gives
// several windows that overlap, as Hugging Face's run_qa cuts them (truncation "only_second" with a stride). Contexts
// are tokenized once for all their questions; a window is a range of their tokens, put together when it is asked for.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "millrace/data/text/squad.h"
#include "millrace/data/text/wordpiece.h"

namespace millrace::data {

struct SquadWindowOptions {
  int32_t max_tokens = 384;          // of a window, with [CLS] and [SEP]
  int32_t doc_stride = 128;          // tokens that neighbouring windows share
  int32_t max_question_tokens = 64;  // of a longer question the end is cut
};

struct SquadWindow {
  size_t question = 0;  // in SquadFile::questions
  int64_t first = 0;    // its tokens of the context, in the context's
  int32_t num_context = 0;
  int32_t context_at = 0;  // where these begin in the window
  int32_t start = 0;       // the answer's first and last token in the window; both 0, [CLS], where the window does
  int32_t end = 0;         // not have all of it

  int32_t num_tokens() const { return context_at + num_context + 1; }
};

class SquadWindows {
 public:
  // Both must outlive this.
  SquadWindows(const SquadFile& file, const WordPiece& tokenizer, const SquadWindowOptions& options);

  const std::vector<SquadWindow>& windows() const { return windows_; }  // those of a question one after another
  const SquadWindowOptions& options() const { return options_; }

  // Writes a window's max_tokens ids and segments, padded.
  void fill(const SquadWindow& window, std::span<int32_t> ids, std::span<int32_t> segments) const;

  // The original text from one token of the window to another, both included: bytes of the context, with the
  // combining marks that follow the last one. Empty when the tokens are not of the context or the wrong way round.
  std::string_view span_text(const SquadWindow& window, int64_t start, int64_t end) const;

 private:
  void add_windows(size_t question);

  const SquadFile& file_;
  const WordPiece& tokenizer_;
  const SquadWindowOptions options_;
  std::vector<std::vector<Token>> contexts_;   // tokens, as SquadFile::contexts
  std::vector<std::vector<Token>> questions_;  // cut to max_question_tokens
  std::vector<SquadWindow> windows_;
};

}  // namespace millrace::data
