// The published experiments, as they are predicted.
#include "millrace/plan/reproduce.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace millrace::plan {
namespace {

class Reproduce : public testing::Test {
 protected:
  static const std::map<std::string, Reproduced>& rows() {
    static const std::map<std::string, Reproduced> all = [] {
      std::map<std::string, Reproduced> found;
      for (const Reproduced& row : reproduce(false).rows) found[row.published.id] = row;
      return found;
    }();
    return all;
  }
  static double speed(const std::string& id) { return rows().at(id).samples_per_s.value(); }
};

TEST_F(Reproduce, EveryPublishedRowIsThere) {
  EXPECT_EQ(rows().size(), 31u);
  for (const auto& [id, row] : rows()) EXPECT_TRUE(row.samples_per_s || !row.note.empty()) << id;
}

TEST_F(Reproduce, DataParallelRowsAreWithinFifteenPercent) {
  for (const char* id : {"of_alexnet_dp_8r_b256", "of_vgg_dp_8r_b32", "of_rn50_fp16_8", "of_rn50_fp16_16",
                         "of_rn50_fp16_32", "of_rn50_dp", "of_rn50_ssp1"}) {
    EXPECT_FALSE(rows().at(id).calibrates) << id;
    EXPECT_NEAR(rows().at(id).ratio().value(), 1, 0.15) << id;
  }
}

TEST_F(Reproduce, SingleDeviceRowsAreMetByConstruction) {
  for (const char* id : {"of_alexnet_dp_1r_b256", "of_vgg_dp_1r_b32", "of_rn50_fp16_1"}) {
    EXPECT_TRUE(rows().at(id).calibrates) << id;
    EXPECT_NEAR(rows().at(id).ratio().value(), 1, 0.01) << id;
  }
}

TEST_F(Reproduce, StalenessByStageKeepsThePublishedOrder) {
  EXPECT_GT(speed("of_alexnet_ssp_8r_b256_10"), speed("of_alexnet_dp_8r_b256"));
  EXPECT_GT(speed("of_alexnet_dp_8r_b256"), speed("of_alexnet_ssp_8r_b256_3_false"));
}

TEST_F(Reproduce, WhatIsFarOffHasACause) {
  for (const auto& [id, row] : rows()) {
    const bool far = row.ratio() && std::abs(*row.ratio() - 1) > 0.15;
    EXPECT_TRUE(!far || !row.note.empty()) << id;
  }
}

}  // namespace
}  // namespace millrace::plan
