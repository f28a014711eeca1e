// Any bytes as a profile, ours or PipeDream's: only the error a caller expects, in one line. For clang's libFuzzer;
// seeds in corpus/profile.
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "millrace/profile/profile.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace::profile;
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const bool ours : {true, false}) {
    try {
      if (ours) {
        parse_profile(text, "fuzz.json");
      } else {
        parse_pipedream_graph(text, "fuzz.txt");
      }
    } catch (const std::invalid_argument& error) {
      const std::string line = error.what();
      if (!line.starts_with("fuzz.") || line.find('\n') != std::string::npos) std::abort();
    }
  }
  return 0;
}
