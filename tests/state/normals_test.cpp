#include "millrace/state/normals.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace millrace::state {
namespace {

TEST(Normals, AreThoseOfTheLibraryWithinFloatRounding) {
  const RandomStream stream(42, 0, 0);
  std::vector<float> fast(4'000'000);
  fill_normals(stream, 0, 1.0f, fast);
  double worst = 0;
  for (size_t i = 0; i < fast.size(); i += 4) {
    const RandomBlock words = stream.at(i / 4);
    const auto first = normal(words[0], words[1]), second = normal(words[2], words[3]);
    const float exact[] = {first[0], first[1], second[0], second[1]};
    for (size_t j = 0; j < 4; ++j) worst = std::max(worst, std::abs(static_cast<double>(fast[i + j]) - exact[j]));
  }
  EXPECT_LT(worst, 2e-6);
}

TEST(Normals, AreFiniteAndWithinTheReachOf32Bits) {
  std::vector<float> values(4'000'000);
  fill_normals(RandomStream(1, 2, 3), 0, 1.0f, values);
  for (float value : values) ASSERT_LE(std::abs(value), 6.67f);  // sqrt(2 ln 2^32)
}

TEST(Normals, APartIsTheSameAsTheWholeFromThere) {
  const RandomStream stream(9, 0, 0);
  std::vector<float> whole(4000), part(1001);
  fill_normals(stream, 0, 3.0f, whole);
  fill_normals(stream, 100, 3.0f, part);
  for (size_t i = 0; i < part.size(); ++i) ASSERT_EQ(part[i], whole[400 + i]);
}

}  // namespace
}  // namespace millrace::state
