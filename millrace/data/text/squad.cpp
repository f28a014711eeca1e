#include "millrace/data/text/squad.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "millrace/base/error.h"
#include "millrace/data/bad_sample.h"
#include "millrace/data/text/read_text.h"
#include "millrace/data/text/unicode.h"
#include "millrace/job/text.h"

namespace millrace::data {

namespace {

using job::in_quotes;
using nlohmann::json;

constexpr const char* kShape =
    R"(SQuAD 1.1 is {"data": [{"paragraphs": [{"context": ..., "qas": [{"id", "question", "answers"}]}]}]})";

// The value under a key, or null where there is none.
const json* find(const json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

class SquadParser {
 public:
  SquadParser(std::string_view name, SkipLog* skip) : name_(name), skip_(skip) {}

  SquadFile parse(const json& root) {
    for (const json& article : array_in(root, "data", "the file")) {
      for (const json& paragraph : array_in(article, "paragraphs", fmt::format("article {}", ++articles_))) {
        add_paragraph(paragraph);
      }
    }
    if (file_.questions.empty()) fail_input("{}: no question that can be used among {}", name_, questions_);
    return std::move(file_);
  }

 private:
  const json::array_t& array_in(const json& object, const char* key, const std::string& where) const {
    const json* found = find(object, key);
    if (found == nullptr || !found->is_array()) fail_input("{}: {} has no list \"{}\"; {}", name_, where, key, kShape);
    return found->get_ref<const json::array_t&>();
  }

  void add_paragraph(const json& paragraph) {
    const std::string where = fmt::format("paragraph {}, counted over all articles,", file_.contexts.size() + 1);
    const json* context = find(paragraph, "context");
    if (context == nullptr || !context->is_string()) fail_input("{}: {} has no \"context\"; {}", name_, where, kShape);
    file_.contexts.push_back(context->get<std::string>());
    for (const json& question : array_in(paragraph, "qas", where)) {
      ++questions_;
      try {
        file_.questions.push_back(read_question(question));
      } catch (const BadSample& bad) {
        if (skip_ == nullptr) throw;
        skip_->add(bad.what());
      }
    }
  }

  SquadQuestion read_question(const json& object) const {
    SquadQuestion question;
    question.paragraph = file_.contexts.size() - 1;
    const std::string nameless = fmt::format("number {}", questions_);
    question.id = string_in(object, "id", nameless);
    const std::string where = in_quotes(question.id);
    question.text = string_in(object, "question", where);
    const json* answers = find(object, "answers");
    if (answers == nullptr || !answers->is_array()) fail(where, "has no list \"answers\"; write one");
    if (answers->empty()) fail(where, "has no answer; leave it out (questions without one are SQuAD 2.0's)");
    for (const json& answer : *answers) question.answers.push_back(read_answer(answer, where));
    return question;
  }

  SquadAnswer read_answer(const json& object, const std::string& where) const {
    const std::string& context = file_.contexts.back();
    SquadAnswer answer;
    answer.text = string_in(object, "text", where);
    if (answer.text.empty()) fail(where, "has an empty answer; write the words of the context");
    const json* start = find(object, "answer_start");
    if (start == nullptr) fail(where, "has an answer without \"answer_start\"; write its first character's number");
    if (!start->is_number_unsigned()) {
      fail(where, fmt::format("has {} as answer_start; write a whole number, 0 for the context's first character",
                              start->is_number_integer() ? std::to_string(start->get<int64_t>())
                                                         : fmt::format("a {}", start->type_name())));
    }
    const auto first = start->get<uint64_t>();
    answer.begin = byte_of_char(context, first);
    if (answer.begin == std::string::npos || context.compare(answer.begin, answer.text.size(), answer.text) != 0) {
      fail(where, fmt::format("has answer {}, which does not stand at character {} of its context; {}",
                              in_quotes(answer.text), first, where_it_stands(context, answer.text)));
    }
    return answer;
  }

  static std::string where_it_stands(std::string_view context, std::string_view text) {
    const size_t at = context.find(text);
    if (at == std::string_view::npos) return "it stands nowhere in it: correct the text";
    uint64_t characters = 0;
    for (size_t byte = 0; byte < at; ++characters) byte += static_cast<size_t>(decode_utf8(context, byte).bytes);
    return fmt::format("write {} (characters count, not bytes)", characters);
  }

  std::string string_in(const json& object, const char* key, const std::string& where) const {
    const json* found = find(object, key);
    if (found == nullptr || !found->is_string()) fail(where, fmt::format("has no text \"{}\"; write one", key));
    return found->get<std::string>();
  }

  [[noreturn]] void fail(std::string_view question, std::string_view reason) const {
    fail_sample("{}: question {} {}", name_, question, reason);
  }

  std::string_view name_;
  SkipLog* skip_;
  SquadFile file_;
  int64_t articles_ = 0;
  int64_t questions_ = 0;
};

}  // namespace

SquadFile parse_squad(std::string_view text, std::string_view name, SkipLog* skip) {
  json root;
  try {
    root = json::parse(text);
  } catch (const json::parse_error& error) {
    const std::string_view before = text.substr(0, std::min(error.byte, text.size()));
    fail_input("{}:{}: not JSON: something unexpected at byte {} of {}; {}", name,
               std::count(before.begin(), before.end(), '\n') + 1, error.byte, text.size(), kShape);
  } catch (const json::out_of_range&) {  // a number such as 1e999
    fail_input("{}: not JSON that can be read: a number is too large for a double; {}", name, kShape);
  }
  return SquadParser(name, skip).parse(root);
}

SquadFile read_squad(const std::string& path, SkipLog* skip) {
  return parse_squad(read_text(path, "set of questions (SQuAD 1.1 .json)"), path, skip);
}

}  // namespace millrace::data
