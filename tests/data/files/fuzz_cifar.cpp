// Any bytes as a CIFAR file of either set: every whole record is read or refused as a BadSample, the rest is counted.
//
// clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -I. tests/data/files/fuzz_cifar.cpp
//   millrace/data/files/{cifar,file_pool,listing,pending_file}.cpp -lfmt
// Run with -max_len=20000: a record has 3073 bytes.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "millrace/data/bad_sample.h"
#include "millrace/data/files/cifar.h"

namespace {

using namespace millrace::data;

void expect(bool holds) {
  if (!holds) std::abort();
}

void read(const std::string& path, CifarLabels labels, int64_t bytes, bool skip_rest) {
  SkipLog skip;
  try {
    const Cifar source(path, labels, true, 0, skip_rest ? &skip : nullptr);
    const int64_t record = labels == CifarLabels::Ten ? 3073 : 3074;
    expect(source.size() == bytes / record && skip.count() == (bytes % record != 0));
    StoredImage image;
    for (int64_t sample = 0; sample < source.size(); ++sample) {
      try {
        source.read(sample, image);
        expect(image.label >= 0 && image.label < source.classes() && image.bytes.size() == 3072);
      } catch (const BadSample&) {
      }
    }
  } catch (const std::invalid_argument&) {  // no whole record, or a rest that is not to be skipped
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int file = ::memfd_create("batch", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  expect(::ftruncate(file, 0) == 0 && ::pwrite(file, data, size, 0) == static_cast<ssize_t>(size));
  for (const bool skip_rest : {false, true}) {
    for (const CifarLabels labels : {CifarLabels::Ten, CifarLabels::Hundred, CifarLabels::SuperTwenty}) {
      read(path, labels, static_cast<int64_t>(size), skip_rest);
    }
  }
  return 0;
}
