// Any bytes as an OFRecord: the walk has to agree with libprotobuf wherever it does not give up. Any bytes as a file
// of records: the index has to stay inside it, and every record it finds has to be read or refused as a BadSample.
//
// clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -I. -I<generated> tests/data/files/fuzz_ofrecord.cpp
//   millrace/data/files/{file_pool,listing,ofrecord,ofrecord_image,ofrecord_index,pending_file}.cpp
//   <generated>/ofrecord.pb.cc -lprotobuf-lite -lfmt
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "millrace/data/bad_sample.h"
#include "millrace/data/files/ofrecord.h"
#include "millrace/data/files/ofrecord_image.h"

namespace {

using namespace millrace::data;

void expect(bool holds) {
  if (!holds) std::abort();
}

void parse(const uint8_t* data, size_t size) {
  const std::vector<uint8_t> record(data, data + size);
  const auto found = find_picture(record);
  std::vector<uint8_t> walked = record, judged = record;
  bool sound = true, agreed = true;
  int64_t label = 0;
  try {
    label = take_picture_by_protobuf(judged);
  } catch (const BadSample&) {
    sound = false;
  }
  try {
    expect(take_picture(walked) == label);
  } catch (const BadSample&) {
    agreed = false;
  }
  expect(sound == agreed);
  if (sound) expect(walked == judged);
  if (found && found->size > 0) expect(sound && found->label == label && found->size == judged.size());
}

void index(const uint8_t* data, size_t size) {
  static const int file = ::memfd_create("part-0", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  expect(::ftruncate(file, 0) == 0 && ::pwrite(file, data, size, 0) == static_cast<ssize_t>(size));
  SkipLog skip;
  try {
    const OfRecordFiles source(path, 1000, &skip, 1);
    StoredImage image;
    for (int64_t sample = 0; sample < source.size(); ++sample) {
      try {
        source.read(sample, image);
        expect(image.label >= 0 && image.label < 1000 && !image.bytes.empty() && image.bytes.size() < size);
      } catch (const BadSample&) {
      }
    }
    expect(source.stored_bytes() == static_cast<int64_t>(size) && skip.count() <= 1);
  } catch (const std::invalid_argument&) {  // no record in it
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  if (data[0] % 2 == 0) {
    parse(data + 1, size - 1);
  } else {
    index(data + 1, size - 1);
  }
  return 0;
}
