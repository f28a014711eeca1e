#include "millrace/job/stage_file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>

namespace millrace::job {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

std::function<void()> parsing(const std::string& text) {
  return [=] { parse_stage_file(text, "stages.json"); };
}
std::function<void()> modules(const std::string& list) {
  return parsing("{\"module_to_stage_map\": " + list + ", \"stage_to_rank_map\": {\"0\": [0], \"1\": [1]}}");
}
std::function<void()> ranks(const std::string& map) {
  return parsing("{\"module_to_stage_map\": [0, 0, 1], \"stage_to_rank_map\": " + map + "}");
}

template <typename Message>
auto refuses(Message message) {
  return ThrowsMessage<std::invalid_argument>(message);
}

TEST(StageFile, PipeDreamsFileIsReadAndRanksBecomeDevices) {
  const StageFile file =
      parse_stage_file(R"({"module_to_stage_map":[0,1,1],"stage_to_rank_map":{"0":[0,1,2],"1":[3]}})", "stages.json");
  EXPECT_EQ(file.module_to_stage, (std::vector<int>{0, 1, 1}));
  EXPECT_EQ(file.placement, parse_placement("0:0-2.0:3"));
}

TEST(StageFile, StagesAreTakenByNumberNotByText) {
  std::string map, list;
  for (int stage = 0; stage < 11; ++stage) {
    list += fmt::format("{}{}", stage ? "," : "", stage);
    map += fmt::format("{}\"{}\":[{}]", stage ? "," : "", stage, stage);
  }
  const StageFile file =
      parse_stage_file(fmt::format(R"({{"module_to_stage_map":[{}],"stage_to_rank_map":{{{}}}}})", list, map), "s");
  ASSERT_EQ(file.placement.size(), 11u);
  EXPECT_EQ(file.placement[2], (std::vector<DeviceId>{{0, 2}}));
  EXPECT_EQ(file.placement[10], (std::vector<DeviceId>{{0, 10}}));
}

TEST(StageFile, WhatIsNotJsonNamesItsLine) {
  EXPECT_THAT(parsing("{\n  \"module_to_stage_map\": [0,\n}"),
              refuses("stages.json:3: not JSON; write e.g. {\"module_to_stage_map\": [0, 1], \"stage_to_rank_map\": "
                      "{\"0\": [0], \"1\": [1]}}"));
  EXPECT_THAT(parsing(""), refuses(HasSubstr("stages.json:1: not JSON")));
  EXPECT_THAT(parsing("[]"), refuses(HasSubstr("stages.json: not an object; write {\"module_to_stage_map\": ")));
}

TEST(StageFile, BothMapsAreNeededInTheirForm) {
  EXPECT_THAT(parsing("{}"),
              refuses("stages.json: module_to_stage_map is missing; write e.g. \"module_to_stage_map\": [0, 1, 1]"));
  EXPECT_THAT(parsing(R"({"module_to_stage_map": [0]})"), refuses(HasSubstr("stage_to_rank_map is missing")));
  EXPECT_THAT(modules("0"), refuses(HasSubstr("module_to_stage_map is not of its form; write e.g.")));
  EXPECT_THAT(ranks("[0, 1]"), refuses(HasSubstr("stage_to_rank_map is not of its form; write e.g.")));
}

TEST(StageFile, StagesOfModulesRiseOneByOne) {
  EXPECT_THAT(modules("[]"), refuses(HasSubstr("module_to_stage_map is empty")));
  EXPECT_THAT(modules("[1, 1]"), refuses(HasSubstr("begins with stage 1; it must begin with 0")));
  EXPECT_THAT(modules("[0, 1, 0]"),
              refuses("stages.json: module_to_stage_map: module 2 is of stage 0, after one of stage 1; stages must not "
                      "fall"));
  EXPECT_THAT(modules("[0, 2]"),
              refuses("stages.json: module_to_stage_map: module 1 is of stage 2, after one of stage 0; stage 1 has no "
                      "module"));
  EXPECT_THAT(modules("[0, \"1\"]"), refuses(HasSubstr("the stage of module 1 is \"\"1\"\", not a whole number")));
  EXPECT_THAT(modules("[0, 0.5]"), refuses(HasSubstr("not a whole number")));
  EXPECT_THAT(modules("[-1]"), refuses(HasSubstr("is -1; it must lie between 0 and 65535")));
  EXPECT_THAT(modules("[18446744073709551615]"), refuses(HasSubstr("it must lie between 0 and 65535")));
  EXPECT_THAT(modules("[1e999]"), refuses("stages.json: holds a number out of range; stages and ranks go up to 65535"));
}

TEST(StageFile, EveryStageHasRanks) {
  EXPECT_THAT(ranks(R"({"0": [0]})"), refuses("stages.json: stage_to_rank_map has no stage 1; write e.g. \"1\": [1]"));
  EXPECT_THAT(ranks(R"({"0": [0], "1": []})"), refuses(HasSubstr("stage 1 has no ranks; write e.g. \"1\": [1]")));
  EXPECT_THAT(ranks(R"({"0": [0], "1": [1], "2": [2]})"),
              refuses("stages.json: stage_to_rank_map names stage \"2\"; module_to_stage_map has stages 0 to 1"));
  EXPECT_THAT(ranks(R"({"0": [0], "one": [1]})"), refuses(HasSubstr("names stage \"one\"")));
}

TEST(StageFile, EveryRankBelongsToOneStage) {
  EXPECT_THAT(ranks(R"({"0": [0, 1], "1": [1]})"),
              refuses("stages.json: stage_to_rank_map names rank 1 twice; write each once"));
  EXPECT_THAT(ranks(R"({"0": [0, 1], "1": [3]})"),
              refuses("stages.json: stage_to_rank_map goes up to rank 3 without rank 2; write every rank once"));
  EXPECT_THAT(ranks(R"({"0": [0], "1": [true]})"), refuses(HasSubstr("a rank of stage 1 is \"true\", not a whole")));
}

TEST(StageFile, FilesThatCannotBeReadAreRefusedByName) {
  EXPECT_THAT([] { read_stage_file("no/such.json"); }, refuses("no/such.json: no such stage file"));
  EXPECT_THAT([] { read_stage_file(testing::TempDir()); }, refuses(HasSubstr("is a directory; name the stage file")));
}

TEST(StageFile, StagesArePlacedByTheFileOrThePlacement) {
  Parallel parallel;
  EXPECT_TRUE(placed_stages(parallel).empty());
  parallel.placement = "0:0.0:1";
  EXPECT_EQ(placed_stages(parallel).size(), 2u);

  const std::string path = testing::TempDir() + "stage_file_test" + std::to_string(::getpid());
  std::ofstream(path) << R"({"module_to_stage_map":[0,1,2],"stage_to_rank_map":{"0":[2],"1":[1],"2":[0]}})";
  parallel = {};
  parallel.stage_file = path;
  EXPECT_EQ(placed_stages(parallel), parse_placement("0:2.0:1.0:0"));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace millrace::job
