// Any bytes as a set of questions: only the errors a caller expects; answers stand where they are said to, and every
// window of them can be filled and read back.
// For clang's libFuzzer (-fsanitize=fuzzer,address,undefined); seeds in corpus/squad.
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "millrace/data/text/squad.h"
#include "millrace/data/text/squad_metric.h"
#include "millrace/data/text/squad_windows.h"

namespace {

using namespace millrace::data;

void check_windows(const SquadFile& file) {
  static const WordPiece tokenizer(
      Vocabulary("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n##a\nb\n##b\nthe\ne\n##e\n.\n?\n", "vocab"), "vocab");
  const SquadWindows set(file, tokenizer, {.max_tokens = 16, .doc_stride = 3, .max_question_tokens = 5});
  std::vector<int32_t> ids(16), segments(16);
  SquadMetric metric;
  for (const SquadWindow& window : set.windows()) {
    set.fill(window, ids, segments);
    if (window.num_tokens() > 16 || window.start > window.end || window.end >= window.num_tokens()) std::abort();
    metric.add(set.span_text(window, window.start, window.end), file.questions[window.question].answers);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  SkipLog log;
  for (SkipLog* skip : {static_cast<SkipLog*>(nullptr), &log}) {
    try {
      const SquadFile file = parse_squad(text, "fuzz.json", skip);
      for (const SquadQuestion& question : file.questions) {
        for (const SquadAnswer& answer : question.answers) {
          const std::string& context = file.contexts[question.paragraph];
          if (context.compare(answer.begin, answer.text.size(), answer.text) != 0) std::abort();
        }
      }
      check_windows(file);
    } catch (const std::invalid_argument& error) {
      if (std::string(error.what()).find('\n') != std::string::npos) std::abort();
    }
  }
  return 0;
}
