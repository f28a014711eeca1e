#include "millrace/data/text/squad_windows.h"

#include <algorithm>

#include "millrace/base/error.h"
#include "millrace/data/text/encoding.h"
#include "millrace/data/text/unicode.h"

namespace millrace::data {

namespace {

constexpr int32_t kSpecialTokens = 3;  // [CLS] and two [SEP]

struct TokenSpan {
  int64_t first = 0, last = -1;  // both included
};

// The tokens that have bytes of the answer. (run_qa compares ends instead, which takes in a neighbour where an answer
// ends with a space or a dropped mark, and puts the start behind the end where tokens share one character.)
TokenSpan tokens_of(const std::vector<Token>& tokens, const SquadAnswer& answer) {
  const auto begin = static_cast<int64_t>(answer.begin);
  const auto end = static_cast<int64_t>(answer.begin + answer.text.size());
  const auto first =
      std::partition_point(tokens.begin(), tokens.end(), [&](const Token& token) { return token.end <= begin; });
  const auto after = std::partition_point(first, tokens.end(), [&](const Token& token) { return token.begin < end; });
  return {first - tokens.begin(), after - tokens.begin() - 1};
}

void check(const SquadWindowOptions& options) {
  if (options.max_question_tokens < 1 || options.doc_stride < 0) {
    fail_input("max_question_tokens {}, doc_stride {}; write at least 1 and 0", options.max_question_tokens,
               options.doc_stride);
  }
  const int64_t room = int64_t{options.max_tokens} - kSpecialTokens - options.max_question_tokens;
  if (room <= options.doc_stride) {
    fail_input(
        "max_tokens {} leaves {} for the context beside a question of {}; that is not more than the doc_stride of "
        "{}, so windows would not advance; write at least {}",
        options.max_tokens, room, options.max_question_tokens, options.doc_stride,
        int64_t{options.doc_stride} + options.max_question_tokens + kSpecialTokens + 1);
  }
}

}  // namespace

SquadWindows::SquadWindows(const SquadFile& file, const WordPiece& tokenizer, const SquadWindowOptions& options)
    : file_(file), tokenizer_(tokenizer), options_(options) {
  check(options_);
  contexts_.reserve(file.contexts.size());
  for (const std::string& context : file.contexts) contexts_.push_back(tokenizer.tokenize(context));
  questions_.reserve(file.questions.size());
  for (size_t i = 0; i < file.questions.size(); ++i) {
    std::vector<Token> tokens = tokenizer.tokenize(file.questions[i].text);
    tokens.resize(std::min(tokens.size(), static_cast<size_t>(options_.max_question_tokens)));
    questions_.push_back(std::move(tokens));
    add_windows(i);
  }
}

void SquadWindows::add_windows(size_t question) {
  const SquadQuestion& asked = file_.questions[question];
  const std::vector<Token>& context = contexts_[asked.paragraph];
  const auto total = static_cast<int64_t>(context.size());
  const auto question_tokens = static_cast<int32_t>(questions_[question].size());
  const int64_t room = int64_t{options_.max_tokens} - kSpecialTokens - question_tokens;
  const TokenSpan answer = tokens_of(context, asked.answers.front());
  for (int64_t first = 0;; first += room - options_.doc_stride) {
    SquadWindow window{.question = question,
                       .first = first,
                       .num_context = static_cast<int32_t>(std::min(room, total - first)),
                       .context_at = question_tokens + 2};
    const int64_t end = first + window.num_context;
    if (answer.first <= answer.last && answer.first >= first && answer.last < end) {
      window.start = static_cast<int32_t>(answer.first - first) + window.context_at;
      window.end = static_cast<int32_t>(answer.last - first) + window.context_at;
    }
    windows_.push_back(window);
    if (end == total) break;
  }
}

void SquadWindows::fill(const SquadWindow& window, std::span<int32_t> ids, std::span<int32_t> segments) const {
  const auto& context = contexts_[file_.questions[window.question].paragraph];
  const auto piece =
      std::span(context).subspan(static_cast<size_t>(window.first), static_cast<size_t>(window.num_context));
  write_sequence(tokenizer_.special(), questions_[window.question], piece, true, ids, segments);
}

std::string_view SquadWindows::span_text(const SquadWindow& window, int64_t start, int64_t end) const {
  if (start < window.context_at || end < start || end >= window.context_at + window.num_context) return {};
  const size_t paragraph = file_.questions[window.question].paragraph;
  const std::string_view context = file_.contexts[paragraph];
  const auto& tokens = contexts_[paragraph];
  const auto token = [&](int64_t at) { return tokens[static_cast<size_t>(window.first + at - window.context_at)]; };
  const auto first = static_cast<size_t>(token(start).begin);
  auto last = static_cast<size_t>(token(end).end);
  while (last < context.size()) {
    const DecodedChar next = decode_utf8(context, last);
    if (!is_mark(next.value)) break;
    last += static_cast<size_t>(next.bytes);
  }
  return context.substr(first, last - first);
}

}  // namespace millrace::data
