// Any bytes as a job: only the error a caller expects, in one line; and a job that is read is written and read again.
// For clang's libFuzzer (-fsanitize=fuzzer,address,undefined); seeds in corpus/job.
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "millrace/job/reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace::job;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const Job job = parse_job(text, "fuzz.yaml", {});
    if (!(parse_job(to_yaml(job), "again.yaml", {}) == job)) std::abort();
  } catch (const std::invalid_argument& error) {
    const std::string line = error.what();
    if (!line.starts_with("fuzz.yaml") || line.find('\n') != std::string::npos) std::abort();
  }
  return 0;
}
