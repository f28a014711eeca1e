// Any bytes as a safetensors file: only the errors a caller expects, and tensors that hold as many values as they say.
// For clang's libFuzzer (-fsanitize=fuzzer,address,undefined); seeds in corpus/safetensors.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "millrace/state/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace::state;
  const int file = ::memfd_create("fuzz", 0);  // the reader takes a path
  if (file < 0 || ::write(file, data, size) != static_cast<ssize_t>(size)) std::abort();
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  try {
    const TensorFile read = read_safetensors(path);
    for (const auto& [name, tensor] : read.tensors) {
      if (tensor.shape.elements() != static_cast<int64_t>(tensor.data.size())) std::abort();
      if (tensor.data.size() > size) std::abort();  // every type has at least a byte
    }
    if (read_shapes(path).size() != read.tensors.size()) std::abort();
  } catch (const std::invalid_argument& error) {
    const std::string line = error.what();
    if (!line.starts_with(path + ": ") || line.find('\n') != std::string::npos) std::abort();
  }
  ::close(file);
  return 0;
}
