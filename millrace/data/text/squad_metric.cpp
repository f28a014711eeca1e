#include "millrace/data/text/squad_metric.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "millrace/data/text/unicode.h"

namespace millrace::data {

namespace {

// The script is Python, so characters are of the kinds Python has for them: today's Unicode, unlike the tokenizer's.
utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

bool is_python_space(char32_t c) { return is_space(c) || (c >= 0x1C && c <= 0x1F); }

// \w of Python's re: letters and numbers. (Its underscore is gone with the punctuation.)
bool is_word_char(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO: return true;
    default: return false;
  }
}

bool is_ascii_punctuation(char32_t c) { return c < 0x80 && is_punctuation(c); }

bool is_cased(char32_t c) {
  const auto kind = category(c);
  return kind == UTF8PROC_CATEGORY_LU || kind == UTF8PROC_CATEGORY_LL || kind == UTF8PROC_CATEGORY_LT || c == 0xAA ||
         c == 0xBA || (c >= 0x2160 && c <= 0x217F) || (c >= 0x24B6 && c <= 0x24E9);  // ordinals, Roman and circled
}

// What may stand between a word's letters without ending it, for the form of a sigma.
bool is_case_ignorable(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK: return true;
    default: return c == '\'' || c == '.' || c == ':' || c == 0xB7 || c == 0x2019;
  }
}

std::u32string decode(std::string_view text) {
  std::u32string result;
  for (size_t at = 0; at < text.size();) {
    const DecodedChar c = decode_utf8(text, at);
    result.push_back(c.value);
    at += static_cast<size_t>(c.bytes);
  }
  return result;
}

// A sigma that ends a word is U+03C2.
bool is_final_sigma(const std::u32string& text, size_t at) {
  size_t before = at;
  while (before > 0 && is_case_ignorable(text[before - 1])) --before;
  if (before == 0 || !is_cased(text[before - 1])) return false;
  size_t after = at + 1;
  while (after < text.size() && is_case_ignorable(text[after])) ++after;
  return after == text.size() || !is_cased(text[after]);
}

std::u32string python_lower(const std::u32string& text) {
  std::u32string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == 0x130) {
      result += U"i\u0307";
    } else if (text[i] == 0x3A3) {
      result.push_back(is_final_sigma(text, i) ? 0x3C2 : 0x3C3);
    } else {
      result.push_back(to_lower(text[i]));
    }
  }
  return result;
}

// As re.sub(r"\b(a|an|the)\b", " "): a word ends at any character that is no letter or number.
std::u32string without_articles(const std::u32string& text) {
  std::u32string result;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin;
    while (end < text.size() && is_word_char(text[end])) ++end;
    const std::u32string_view word = std::u32string_view(text).substr(begin, end - begin);
    if (word == U"a" || word == U"an" || word == U"the") {
      result.push_back(U' ');
    } else {
      result += word;
    }
    if (end < text.size()) result.push_back(text[end++]);
    begin = end;
  }
  return result;
}

std::vector<std::string_view> words_of(std::string_view normalized) {
  std::vector<std::string_view> words;
  for (size_t begin = 0; begin < normalized.size();) {
    const size_t end = std::min(normalized.find(' ', begin), normalized.size());
    words.push_back(normalized.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

}  // namespace

std::string normalize_answer(std::string_view answer) {
  std::u32string text = python_lower(decode(answer));
  std::erase_if(text, is_ascii_punctuation);
  text = without_articles(text);
  std::string result;
  bool space = false;
  for (const char32_t c : text) {
    if (is_python_space(c)) {
      space = true;
      continue;
    }
    if (space && !result.empty()) result.push_back(' ');
    space = false;
    append_utf8(c, result);
  }
  return result;
}

bool is_exact_match(std::string_view prediction, std::string_view truth) {
  return normalize_answer(prediction) == normalize_answer(truth);
}

double answer_f1(std::string_view prediction, std::string_view truth) {
  const std::string predicted_text = normalize_answer(prediction), true_text = normalize_answer(truth);
  std::vector<std::string_view> predicted = words_of(predicted_text), expected = words_of(true_text), common;
  std::sort(predicted.begin(), predicted.end());
  std::sort(expected.begin(), expected.end());
  std::set_intersection(predicted.begin(), predicted.end(), expected.begin(), expected.end(),
                        std::back_inserter(common));
  if (common.empty()) return 0;
  const auto same = static_cast<double>(common.size());
  const double precision = same / static_cast<double>(predicted.size());
  const double recall = same / static_cast<double>(expected.size());
  return 2 * precision * recall / (precision + recall);
}

void SquadMetric::add(std::string_view prediction, std::span<const SquadAnswer> truths) {
  bool exact = false;
  double f1 = 0;
  for (const SquadAnswer& truth : truths) {
    exact = exact || is_exact_match(prediction, truth.text);
    f1 = std::max(f1, answer_f1(prediction, truth.text));
  }
  ++count_;
  exact_ += exact ? 1 : 0;
  f1_ += f1;
}

}  // namespace millrace::data
