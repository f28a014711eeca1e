#include "millrace/state/position_grid.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace millrace::state {
namespace {

TEST(PositionGrid, IsResizedAsTorchDoes) {
  const auto file = std::filesystem::path(MILLRACE_SOURCE_DIR) / "tests/parity/golden/position_grid.json";
  const nlohmann::json cases = nlohmann::json::parse(std::ifstream(file));
  ASSERT_EQ(cases.size(), 6u);
  for (const nlohmann::json& golden : cases) {
    const int64_t from = golden.at("from"), to = golden.at("to"), width = golden.at("width");
    std::vector<float> table;  // by the rule of torch_position_grid.py
    for (int64_t i = 0; i < (1 + from * from) * width; ++i) {
      table.push_back(static_cast<float>(static_cast<double>(37 * i % 101) / 50 - 1));
    }
    const std::vector<float> resized = resize_position_grid(table, width, from, to);
    const auto expected = golden.at("table").get<std::vector<float>>();
    ASSERT_EQ(resized.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(resized[i], expected[i], 1e-6) << from << " to " << to << ", value " << i;
    }
  }
}

TEST(PositionGrid, OfItsOwnSizeIsKeptToTheBit) {
  const std::vector<float> table{0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f, 0.7f, 0.8f, 0.9f, 1.0f};
  EXPECT_EQ(resize_position_grid(table, 1, 3, 3), table);
}

TEST(PositionGrid, HasAPlaceForTheClassTokenAndASquare) {
  EXPECT_EQ(grid_side(197), 14);
  EXPECT_EQ(grid_side(2), 1);
  EXPECT_EQ(grid_side(196), 0);
  EXPECT_EQ(grid_side(1), 0);
  EXPECT_EQ(grid_side(0), 0);
}

}  // namespace
}  // namespace millrace::state
