// Any bytes as a table of sentences: only the errors a caller expects, and rows that lie within the text.
// For clang's libFuzzer (-fsanitize=fuzzer,address,undefined); seeds in corpus/tsv.
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "millrace/data/text/tsv.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace::data;
  const std::string text(reinterpret_cast<const char*>(data), size);
  SkipLog log;
  for (SkipLog* skip : {static_cast<SkipLog*>(nullptr), &log}) {
    try {
      const TsvFile file = parse_tsv(text, "fuzz.tsv", skip);
      if (file.rows.empty()) std::abort();
      int64_t line = 1;
      for (size_t i = 0; i < file.rows.size(); ++i) {
        const TsvRow& row = file.rows[i];
        if (row.begin + row.bytes > size || row.label < 0 || row.line <= line) std::abort();
        if (file.sentence(i).find_first_of("\t\n") != std::string_view::npos) std::abort();
        line = row.line;
      }
    } catch (const std::invalid_argument& error) {
      if (std::string(error.what()).find('\n') != std::string::npos) std::abort();
    }
  }
  return 0;
}
