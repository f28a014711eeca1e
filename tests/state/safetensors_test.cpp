#include "millrace/state/safetensors.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <cstring>
#include <functional>

#include "millrace/base/random.h"
#include "state/temporary_folder.h"

namespace millrace::state {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using testing::ThrowsMessage;

class Safetensors : public TemporaryFolder {
 protected:
  // Reading a file with this header and so many zero bytes of data.
  std::function<void()> reading(const std::string& header, size_t data_bytes = 0) {
    uint64_t length = header.size();
    std::string bytes(sizeof length, '\0');
    std::memcpy(bytes.data(), &length, sizeof length);
    return reading_bytes(bytes + header + std::string(data_bytes, '\0'));
  }
  std::function<void()> reading_bytes(const std::string& bytes) {
    const std::string file = path("t");
    write_bytes(file, bytes);
    return [file] { read_safetensors(file); };
  }

  // For messages about that file.
  template <typename Message>
  auto refuses(Message message) {
    return ThrowsMessage<std::invalid_argument>(testing::AllOf(StartsWith(path("t") + ": "), HasSubstr(message)));
  }

  int run_python(const std::string& script) {
    write_bytes(path("script.py"), script);
    const int status = std::system(("/usr/bin/python3 '" + path("script.py") + "'").c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  static bool has_python() { return std::filesystem::exists("/usr/bin/python3"); }
};

const std::map<std::string, Tensor> kTensors = {{"conv.weight", {{2, 1, 2}, {1, -2, 3.5, 1e-30f}}},
                                                {"conv.bias", {{2}, {0, -0.5}}},
                                                {"empty", {{0, 3}, {}}},
                                                {"scalar", {{}, {42}}}};

TEST_F(Safetensors, WhatIsWrittenReadsBackEqual) {
  write_safetensors(path("a"), kTensors, {{"step", "12"}, {"who", "a \"name\"\n"}});
  const TensorFile file = read_safetensors(path("a"));
  EXPECT_EQ(file.tensors, kTensors);
  EXPECT_EQ(file.metadata, (std::map<std::string, std::string>{{"step", "12"}, {"who", "a \"name\"\n"}}));
}

TEST_F(Safetensors, TheFileIsSortedAndItsDataAligned) {
  write_safetensors(path("a"), {{"b", {{1}, {2}}}, {"a", {{1}, {1}}}});
  const std::string bytes = read_bytes(path("a"));
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  EXPECT_EQ(length % 8, 0u);
  EXPECT_EQ(bytes.size(), 8 + length + 8);
  float data[2];
  std::memcpy(data, bytes.data() + 8 + length, sizeof data);
  EXPECT_EQ(data[0], 1);
  EXPECT_EQ(data[1], 2);
  EXPECT_THAT(bytes.substr(8), StartsWith(R"({"a":{"data_offsets":[0,4],"dtype":"F32","shape":[1]},"b":)"));
}

TEST_F(Safetensors, NoTensorsAreAFileToo) {
  write_safetensors(path("a"), {});
  EXPECT_TRUE(read_safetensors(path("a")).tensors.empty());
}

TEST_F(Safetensors, AnOldFileIsReplacedAndNothingElseIsLeft) {
  write_bytes(path("a"), "old");
  write_safetensors(path("a"), kTensors);
  EXPECT_EQ(read_safetensors(path("a")).tensors, kTensors);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(Safetensors, AWriteThatFailsLeavesNothingBehind) {
  EXPECT_THAT([this] { write_safetensors(path("no/such/a"), kTensors); },
              ThrowsMessage<std::runtime_error>(path("no/such/a") + ": cannot be created: No such file or directory"));
  std::filesystem::create_directory(path("taken"));
  EXPECT_THAT([this] { write_safetensors(path("taken"), kTensors); },
              ThrowsMessage<std::runtime_error>(StartsWith(path("taken") + ": cannot be put in place: ")));
  EXPECT_THAT(
      [this] {
        write_safetensors(path("b"), {{"x", {{3}, {1}}}});
      },
      ThrowsMessage<std::invalid_argument>(path("b") + ": tensor \"x\" is 3 but holds 1 values"));
  EXPECT_THAT(
      [this] {
        write_safetensors(path("b"), {{"__metadata__", {{1}, {1}}}});
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("cannot be named __metadata__")));
  EXPECT_THAT(
      [this] {
        write_safetensors(path("b"), {{"\xFF", {{1}, {1}}}});
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("is not UTF-8")));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(Safetensors, AnIndependentWritersFileIsRead) {
  if (!has_python()) GTEST_SKIP() << "needs /usr/bin/python3";
  ASSERT_EQ(run_python(R"(
import json, struct
parts = [('z.weight', 'F32', [2, 2], struct.pack('<4f', 1, 2, 3, 4.25)),
         ('double', 'F64', [2], struct.pack('<2d', 0.1, -1e5)),
         ('half', 'F16', [3], struct.pack('<3e', 1.5, -0.25, 65504)),
         ('brain', 'BF16', [2], struct.pack('<2H', 0x3F80, 0xC049)),
         ('bn.num_batches_tracked', 'I64', [], struct.pack('<q', 7)),
         ('\u00e4', 'F32', [], struct.pack('<f', -1))]
header, data = {'__metadata__': {'format': 'pt'}}, b''
for name, dtype, shape, raw in parts:
    header[name] = {'dtype': dtype, 'shape': shape, 'data_offsets': [len(data), len(data) + len(raw)]}
    data += raw
text = json.dumps(header).encode()
open(')" + path("py") + R"(', 'wb').write(struct.pack('<Q', len(text)) + text + data)
)"),
            0);
  const TensorFile file = read_safetensors(path("py"));
  EXPECT_EQ(file.metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
  EXPECT_EQ(file.tensors, (std::map<std::string, Tensor>{{"z.weight", {{2, 2}, {1, 2, 3, 4.25}}},
                                                         {"double", {{2}, {0.1f, -1e5f}}},
                                                         {"half", {{3}, {1.5, -0.25, 65504}}},
                                                         {"brain", {{2}, {1, -3.140625}}},
                                                         {"\u00e4", {{}, {-1}}}}));
}

TEST_F(Safetensors, AnIndependentReaderReadsOurFile) {
  if (!has_python()) GTEST_SKIP() << "needs /usr/bin/python3";
  write_safetensors(path("ours"), kTensors, {{"step", "3"}});
  EXPECT_EQ(run_python(R"(
import json, struct
raw = open(')" + path("ours") +
                       R"(', 'rb').read()
length, = struct.unpack('<Q', raw[:8])
header, data = json.loads(raw[8:8 + length]), raw[8 + length:]
assert header.pop('__metadata__') == {'step': '3'}
assert sorted(header) == ['conv.bias', 'conv.weight', 'empty', 'scalar'], header
assert header['conv.weight']['shape'] == [2, 1, 2] and header['conv.weight']['dtype'] == 'F32'
begin, end = header['conv.weight']['data_offsets']
assert struct.unpack('<4f', data[begin:end])[:3] == (1, -2, 3.5)
assert header['scalar']['shape'] == [] and header['empty']['shape'] == [0, 3]
assert max(entry['data_offsets'][1] for entry in header.values()) == len(data) == 28
)"),
            0);
}

TEST_F(Safetensors, FilesThatAreNoneAreRefused) {
  EXPECT_THAT([] { read_safetensors("no/such"); }, ThrowsMessage<std::invalid_argument>("no/such: no such file"));
  EXPECT_THAT([this] { read_safetensors(folder_.string()); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("not a file; name a safetensors file")));
  EXPECT_THAT(reading_bytes(""), refuses("0 bytes are too few for a safetensors file"));
  EXPECT_THAT(reading_bytes("1234567"), refuses("7 bytes are too few"));
  EXPECT_THAT(reading_bytes("12345678"), refuses("a header of 4050765991979987505 bytes in a file of 8"));
  EXPECT_THAT(reading_bytes(std::string(8, '\xFF') + "{}"), refuses("a header of 18446744073709551615 bytes"));
  EXPECT_THAT(reading_bytes(std::string(8, '\0')), refuses("the header is not valid JSON"));
}

TEST_F(Safetensors, HeadersBeyondTheirLimitAreRefused) {
  // A sparse file: the header would fit in it, but no header is that long.
  const uint64_t length = 100'000'001;
  write_bytes(path("t"), std::string(reinterpret_cast<const char*>(&length), sizeof length));
  std::filesystem::resize_file(path("t"), 8 + length);
  EXPECT_THAT([this] { read_safetensors(path("t")); }, refuses("a header of 100000001 bytes"));
}

TEST_F(Safetensors, HeadersThatAreNotTheRightJsonAreRefused) {
  EXPECT_THAT(reading("{"), refuses("the header is not valid JSON at byte 10"));
  EXPECT_THAT(reading("[]"), refuses("the header is not a JSON object"));
  EXPECT_THAT(reading("{}x"), refuses("not valid JSON"));
  EXPECT_THAT(reading(std::string(100'000, '[')), refuses("nested too deeply"));
  EXPECT_THAT(reading("{\"a\":" + std::string(100'000, '[')), refuses("nested too deeply"));
  EXPECT_THAT(reading("{\"\xFF\": 1}"), refuses("not valid JSON"));
  EXPECT_THAT(reading(R"({"__metadata__": 1})"), refuses("__metadata__ is not an object"));
  EXPECT_THAT(reading(R"({"__metadata__": {"a": 1}})"), refuses("__metadata__ \"a\" is not a text"));
  const std::string a = R"("a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]})";
  EXPECT_THAT(reading("{" + a + "," + a + "}"), refuses("tensor \"a\" is listed twice"));
  EXPECT_THAT(reading(R"({"__metadata__": {}, "__metadata__": {}})"), refuses("\"__metadata__\" is listed twice"));
  // Readers that take the first and readers that take the last would not see the same tensor.
  EXPECT_THAT(reading(R"({"a": {"dtype": "F32", "shape": [1], "shape": [0], "data_offsets": [0, 0]}})"),
              refuses("tensor \"a\": its header entry has \"shape\" twice"));
  EXPECT_THAT(reading(R"({"__metadata__": {"a": "1", "a": "2"}})"), refuses("has \"a\" twice"));
}

TEST_F(Safetensors, EntriesThatAreNotWholeAreRefused) {
  EXPECT_THAT(reading(R"({"a": 1})"), refuses("tensor \"a\": its header entry is not an object"));
  EXPECT_THAT(reading(R"({"a": {"shape": [], "data_offsets": [0, 4]}})"),
              refuses("\"a\": its header entry has no dtype"));
  EXPECT_THAT(reading(R"({"a": {"dtype": "F32", "data_offsets": [0, 4]}})"), refuses("has no shape"));
  EXPECT_THAT(reading(R"({"a": {"dtype": "F32", "shape": []}})"), refuses("has no data_offsets"));
  EXPECT_THAT(reading(R"({"a": {"dtype": 3, "shape": [], "data_offsets": [0, 4]}})"), refuses("dtype is not a text"));
  EXPECT_THAT(reading(R"({"a": {"dtype": "F31", "shape": [], "data_offsets": [0, 4]}})"),
              refuses("\"a\": unknown dtype \"F31\""));
  EXPECT_THAT(reading(R"({"a": {"dtype": "I32", "shape": [], "data_offsets": [0, 4]}})", 4),
              refuses("tensor \"a\" is I32; F32, F64, F16 and BF16 can be read"));
  EXPECT_THAT(reading(R"({"a\n": 1})"), refuses("tensor \"a?\": its name is too long or holds control characters"));
}

TEST_F(Safetensors, WhatIsNoParameterIsLeftOutWhateverItsType) {
  const auto entry = [](const std::string& name, const std::string& dtype, size_t begin, size_t end) {
    return fmt::format(R"("{}": {{"dtype": "{}", "shape": [1], "data_offsets": [{}, {}]}})", name, dtype, begin, end);
  };
  reading("{" + entry("bert.embeddings.position_ids", "I64", 0, 8) + "," + entry("h.0.attn.bias", "BOOL", 8, 9) + "," +
              entry("h.0.attn.masked_bias", "F32", 9, 13) + "," + entry("h.0.attn.c_attn.bias", "F32", 13, 17) + "}",
          17)();
  EXPECT_EQ(read_safetensors(path("t")).tensors, (std::map<std::string, Tensor>{{"h.0.attn.c_attn.bias", {{1}, {0}}}}));
  EXPECT_EQ(read_shapes(path("t")), (std::map<std::string, Shape>{{"h.0.attn.c_attn.bias", {1}}}));
}

TEST_F(Safetensors, ShapesThatCannotBeAreRefused) {
  const auto shape = [&](const std::string& extents, size_t bytes = 4) {
    return reading(R"({"a": {"dtype": "F32", "shape": )" + extents + R"(, "data_offsets": [0, 4]}})", bytes);
  };
  EXPECT_NO_THROW(shape("[1, 1]")());
  EXPECT_THAT(shape("3"), refuses("tensor \"a\": its shape is not a list"));
  EXPECT_THAT(shape("[-1]"), refuses("an extent of its shape is not a whole number of at least 0"));
  EXPECT_THAT(shape("[1.0]"), refuses("is not a whole number"));
  EXPECT_THAT(shape("[\"1\"]"), refuses("is not a whole number"));
  EXPECT_THAT(shape("[99999999999999999999]"), refuses("is not a whole number"));
  EXPECT_THAT(shape("[1, 1, 1, 1, 1, 1, 1]"), refuses("it has 7 axes, at most 6 can be read"));
  EXPECT_THAT(shape("[4611686018427387904, 4]"), refuses("its shape is larger than any memory"));
  EXPECT_THAT(shape("[18446744073709551615]"), refuses("its shape is larger than any memory"));
  EXPECT_THAT(shape("[9223372036854775807, 2, 0]"), refuses("its shape is larger than any memory"));
  EXPECT_THAT(shape("[2]"), refuses("its data_offsets hold 4 bytes, its shape 2 of F32 needs 8"));
  EXPECT_THAT(shape("[0]"), refuses("its data_offsets hold 4 bytes, its shape 0 of F32 needs 0"));
}

TEST_F(Safetensors, DataThatIsNotCoveredOnceIsRefused) {
  const auto entry = [](const std::string& name, const std::string& offsets) {
    return "\"" + name + R"(": {"dtype": "F32", "shape": [1], "data_offsets": )" + offsets + "}";
  };
  const auto two = [&](const std::string& a, const std::string& b, size_t bytes) {
    return reading("{" + entry("a", a) + ", " + entry("b", b) + "}", bytes);
  };
  EXPECT_NO_THROW(two("[0, 4]", "[4, 8]", 8)());
  EXPECT_NO_THROW(two("[4, 8]", "[0, 4]", 8)());
  EXPECT_THAT(two("[0, 4]", "[0, 4]", 8), refuses("its data overlaps another's"));
  EXPECT_THAT(two("[0, 4]", "[2, 6]", 6), refuses("tensor \"b\": its data overlaps another's"));
  EXPECT_THAT(two("[0, 4]", "[8, 12]", 12), refuses("tensor \"b\": 4 unused bytes lie before its data"));
  EXPECT_THAT(two("[0, 4]", "[4, 8]", 9), refuses("1 unused bytes lie after the last tensor"));
  EXPECT_THAT(two("[0, 4]", "[4, 8]", 7),
              refuses("tensor \"b\": its data ends at byte 8 of 7; the file is cut off or damaged"));
  EXPECT_THAT(two("[0, 4]", "[18446744073709551612, 0]", 8), refuses("are out of order"));
  EXPECT_THAT(two("[0, 4]", "[18446744073709551611, 18446744073709551615]", 8), refuses("ends at byte"));
  EXPECT_THAT(two("[0, 4]", "[4]", 8), refuses("tensor \"b\": its data_offsets are not two whole numbers"));
  EXPECT_THAT(two("[0, 4]", "[-4, 0]", 8), refuses("its data_offsets are not two whole numbers"));
}

TEST_F(Safetensors, DamagedFilesNeverCrashTheReader) {
  write_safetensors(path("good"), kTensors, {{"step", "12"}});
  const std::string good = read_bytes(path("good"));
  using namespace std::string_literals;
  const std::string interesting =
      "{}[]\",:0123456789-eE.\\\0\xFF"
      "anullFt "s;
  const RandomStream random(2024, 0, 0);
  int read = 0, refused = 0;
  for (uint64_t trial = 0; trial < 4000; ++trial) {
    std::string bytes = good;
    const RandomBlock choice = random.at(2 * trial);
    for (uint32_t change = 0; change <= choice[0] % 3; ++change) {
      const RandomBlock words = random.at(2 * trial + 1 + (change << 20));
      if (bytes.empty()) break;
      const size_t place = words[0] % bytes.size();
      switch (words[1] % 5) {
        case 0: bytes[place] = static_cast<char>(bytes[place] ^ (1 << words[2] % 8)); break;
        case 1: bytes[place] = interesting[words[2] % interesting.size()]; break;
        case 2: bytes.erase(place, 1 + words[2] % 8); break;
        case 3: bytes.insert(place, 1 + words[2] % 4, interesting[words[3] % interesting.size()]); break;
        case 4: bytes.resize(place + 1); break;
      }
      // Most lengths are made right again, so that the damage is found by more than the first check.
      if (words[3] % 4 != 0 && bytes.size() >= 8) {
        uint64_t length = good.size() - 8 - 28;
        length = std::min<uint64_t>(length + words[2] % 3, bytes.size() - 8);
        std::memcpy(bytes.data(), &length, sizeof length);
      }
    }
    write_bytes(path("bad"), bytes);
    try {
      read_safetensors(path("bad"));
      ++read;
    } catch (const std::invalid_argument& error) {
      ++refused;
      ASSERT_THAT(error.what(), StartsWith(path("bad") + ": "));
      ASSERT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
  // Damage to the numbers themselves cannot be seen; the rest can.
  EXPECT_GT(read, 50);
  EXPECT_GT(refused, 2000);
}

}  // namespace
}  // namespace millrace::state
