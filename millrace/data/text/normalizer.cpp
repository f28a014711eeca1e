#include "millrace/data/text/normalizer.h"

#include <algorithm>
#include <array>

#include "millrace/data/text/unicode.h"

namespace millrace::data {

namespace {

struct AsciiChar {
  bool dropped = false;
  CharKind kind = CharKind::Word;
  char lower = 0;
};

const std::array<AsciiChar, 128>& ascii_table() {
  static const auto table = [] {
    std::array<AsciiChar, 128> result;
    for (char32_t c = 0; c < 128; ++c) {
      AsciiChar& entry = result[c];
      entry.dropped = is_dropped(c);
      entry.kind = is_space(c) ? CharKind::Space : is_punctuation(c) ? CharKind::Punctuation : CharKind::Word;
      entry.lower = is_space(c) ? ' ' : static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    }
    return result;
  }();
  return table;
}

class Normalizer {
 public:
  Normalizer(std::string_view text, bool lower_case, NormalizedText& out)
      : text_(text), lower_case_(lower_case), out_(out), ascii_(ascii_table()) {}

  void run(size_t begin, size_t end) {
    out_.bytes.clear();
    out_.chars.clear();
    const std::string_view part = text_.substr(0, end);  // a character cut by `end` is invalid, not looked up beyond
    for (size_t at = begin; at < end;) {
      if (static_cast<unsigned char>(part[at]) < 0x80) {
        add_ascii(part[at], at);
        ++at;
        continue;
      }
      const DecodedChar c = decode_utf8(part, at);
      const size_t next = at + static_cast<size_t>(c.bytes);
      add(c.value, {static_cast<int32_t>(at), static_cast<int32_t>(next)});
      at = next;
    }
    flush();
  }

 private:
  struct Range {
    int32_t begin, end;
  };
  // A character that canonical order may move, and that is no nonspacing mark: rare.
  struct Moving {
    char32_t value;
    int combining_class;
    Range range;
  };

  void add_ascii(char byte, size_t at) {
    const AsciiChar& c = ascii_[static_cast<size_t>(byte)];
    if (c.dropped) return;
    flush();
    push({static_cast<int32_t>(at), static_cast<int32_t>(at) + 1}, c.kind);
    out_.bytes.push_back(lower_case_ || c.kind == CharKind::Space ? c.lower : byte);
  }

  void add(char32_t c, Range range) {
    if (is_dropped(c)) return;
    if (is_space(c)) return add_space(range);
    const bool cjk = is_cjk(c);
    if (cjk) add_space({range.begin, range.begin});
    if (lower_case_) {
      add_decomposed(c, range);
    } else {
      emit(c, range);
    }
    if (cjk) add_space({range.end, range.end});
  }

  void add_space(Range range) {
    flush();
    push(range, CharKind::Space);
    out_.bytes.push_back(' ');
  }

  void add_decomposed(char32_t c, Range range) {
    std::array<char32_t, 4> parts;
    const int count = decompose(c, parts);
    for (int i = 0; i < count; ++i) {
      const char32_t part = parts[static_cast<size_t>(i)];
      const int order = combining_class(part);
      // Marks are dropped; those that stand still (class 0) keep what is before and after them from changing places.
      if (order == 0) flush();
      if (is_mark(part)) continue;
      if (order == 0) {
        emit(to_lower(part), range);
      } else {
        moving_.push_back({part, order, range});
      }
    }
  }

  // Canonical order: by class, equal ones as they stood. The ranges stay where they were, so that they never go
  // backwards.
  void flush() {
    if (moving_.empty()) return;
    ranges_.clear();
    for (const Moving& c : moving_) ranges_.push_back(c.range);
    std::stable_sort(moving_.begin(), moving_.end(),
                     [](const Moving& a, const Moving& b) { return a.combining_class < b.combining_class; });
    for (size_t i = 0; i < moving_.size(); ++i) emit(to_lower(moving_[i].value), ranges_[i]);
    moving_.clear();
  }

  void emit(char32_t c, Range range) {
    push(range, is_punctuation(c) ? CharKind::Punctuation : CharKind::Word);
    append_utf8(c, out_.bytes);
  }

  void push(Range range, CharKind kind) {
    out_.chars.push_back({static_cast<int32_t>(out_.bytes.size()), range.begin, range.end, kind});
  }

  std::string_view text_;
  const bool lower_case_;
  NormalizedText& out_;
  const std::array<AsciiChar, 128>& ascii_;
  std::vector<Moving> moving_;
  std::vector<Range> ranges_;
};

}  // namespace

void normalize(std::string_view text, size_t begin, size_t end, bool lower_case, NormalizedText& out) {
  Normalizer(text, lower_case, out).run(begin, end);
}

}  // namespace millrace::data
