#include "millrace/data/text/encoding.h"

#include <algorithm>
#include <cassert>

#include "millrace/base/error.h"

namespace millrace::data {

namespace {

Encoding assemble(const SpecialIds& special, std::span<const Token> a, std::span<const Token> b, bool pair,
                  const EncodeOptions& options) {
  const size_t used = a.size() + b.size() + (pair ? 3 : 2);
  const size_t length = options.pad ? static_cast<size_t>(options.max_tokens) : used;
  Encoding result;
  result.ids.resize(length);
  result.segments.resize(length);
  result.num_tokens = write_sequence(special, a, b, pair, result.ids, result.segments);
  result.tokens.reserve(length);
  for (const int32_t id : result.ids) result.tokens.push_back({id, 0, 0});
  std::copy(a.begin(), a.end(), result.tokens.begin() + 1);
  std::copy(b.begin(), b.end(), result.tokens.begin() + static_cast<int64_t>(a.size()) + 2);
  return result;
}

void check_room(const EncodeOptions& options, int32_t special_tokens) {
  if (options.max_tokens < special_tokens) {
    fail_input("max_tokens {} leaves no room for [CLS] and [SEP]; write at least {}", options.max_tokens,
               special_tokens);
  }
}

}  // namespace

int32_t write_sequence(const SpecialIds& special, std::span<const Token> a, std::span<const Token> b, bool pair,
                       std::span<int32_t> ids, std::span<int32_t> segments) {
  assert(ids.size() >= a.size() + b.size() + (pair ? 3 : 2) && segments.size() == ids.size());
  size_t at = 0;
  const auto put = [&](int32_t id, int32_t segment) {
    ids[at] = id;
    segments[at++] = segment;
  };
  put(special.cls, 0);
  for (const Token& token : a) put(token.id, 0);
  put(special.sep, 0);
  if (pair) {
    for (const Token& token : b) put(token.id, 1);
    put(special.sep, 1);
  }
  const auto used = static_cast<int32_t>(at);
  while (at < ids.size()) put(special.pad, 0);
  return used;
}

std::pair<int64_t, int64_t> longest_first(int64_t a, int64_t b, int64_t room) {
  if (a + b <= room) return {a, b};
  // An odd token goes to the longer text, to the second where they are alike.
  const int64_t shorter = std::min({a, b, room / 2});
  return a > b ? std::pair{room - shorter, shorter} : std::pair{shorter, room - shorter};
}

Encoding encode(const WordPiece& tokenizer, std::string_view text, const EncodeOptions& options) {
  check_room(options, 2);
  std::vector<Token> tokens = tokenizer.tokenize(text);
  tokens.resize(std::min(tokens.size(), static_cast<size_t>(options.max_tokens - 2)));
  return assemble(tokenizer.special(), tokens, {}, false, options);
}

Encoding encode_pair(const WordPiece& tokenizer, std::string_view a, std::string_view b, const EncodeOptions& options) {
  check_room(options, 3);
  const std::vector<Token> first = tokenizer.tokenize(a), second = tokenizer.tokenize(b);
  const auto [num_first, num_second] =
      longest_first(static_cast<int64_t>(first.size()), static_cast<int64_t>(second.size()), options.max_tokens - 3);
  return assemble(tokenizer.special(), std::span(first).first(static_cast<size_t>(num_first)),
                  std::span(second).first(static_cast<size_t>(num_second)), true, options);
}

}  // namespace millrace::data
