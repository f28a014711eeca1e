// Any bytes as a plan: only the error a caller expects, in one line. For clang's libFuzzer; seeds in corpus/plan.
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "millrace/plan/plan_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    for (const std::string& setting : millrace::plan::parse_plan_settings(text, "fuzz.json")) {
      if (!setting.starts_with("parallel.") && !setting.starts_with("memory.")) std::abort();  // and nothing else
    }
  } catch (const std::invalid_argument& error) {
    const std::string line = error.what();
    if (!line.starts_with("fuzz.json") || line.find('\n') != std::string::npos) std::abort();
  }
  return 0;
}
