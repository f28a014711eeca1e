#include "millrace/job/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>

namespace millrace::job {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

std::function<void()> placing(const std::string& text) {
  return [=] { parse_placement(text); };
}
std::function<void()> weighing(const std::string& text) {
  return [=] { parse_stage_weights(text); };
}

template <typename Message>
auto refuses(Message message) {
  return ThrowsMessage<std::invalid_argument>(message);
}

TEST(Placement, StagesAreSeparatedByDots) {
  EXPECT_EQ(parse_placement("0:3"), (Placement{{{0, 3}}}));
  EXPECT_EQ(parse_placement("0:0-2.0:3"), (Placement{{{0, 0}, {0, 1}, {0, 2}}, {{0, 3}}}));
  EXPECT_EQ(parse_placement("1:0.0:1.2:10"), (Placement{{{1, 0}}, {{0, 1}}, {{2, 10}}}));
}

TEST(Placement, AStageMaySpanNodesInTheOrderWritten) {
  EXPECT_EQ(parse_placement("1:0-1,0:5"), (Placement{{{1, 0}, {1, 1}, {0, 5}}}));
  EXPECT_EQ(parse_placement("0:2,0:0-1"), (Placement{{{0, 2}, {0, 0}, {0, 1}}}));
}

TEST(Placement, StagesMayShareDevices) {
  const Placement placement = parse_placement("0:0-7,1:0-7.0:0-7,1:0-7");
  ASSERT_EQ(placement.size(), 2u);
  EXPECT_EQ(placement[0].size(), 16u);
  EXPECT_EQ(placement[0], placement[1]);
}

TEST(Placement, EmptyStagesAreRefused) {
  EXPECT_THAT(placing(""), refuses("parallel.placement \"\", character 1: stage 0 is empty; write its devices, e.g. "
                                   "0:0-6.0:7"));
  EXPECT_THAT(placing("0:0."), refuses(HasSubstr("character 5: stage 1 is empty; write its devices")));
  EXPECT_THAT(placing("0:0..0:1"), refuses(HasSubstr("character 5: stage 1 is empty")));
  EXPECT_THAT(placing(".0:0"), refuses(HasSubstr("character 1: stage 0 is empty")));
}

TEST(Placement, RangesRunForwards) {
  EXPECT_THAT(placing("0:0.0:7-3"), refuses("parallel.placement \"0:0.0:7-3\", character 5: the devices 7-3 run "
                                            "backwards; write 0:3-7"));
  EXPECT_EQ(parse_placement("0:3-3"), (Placement{{{0, 3}}}));
}

TEST(Placement, AStageNamesADeviceOnce) {
  EXPECT_THAT(placing("0:0-3,0:2"), refuses("parallel.placement \"0:0-3,0:2\", character 7: stage 0 names device 0:2 "
                                            "twice; write it once"));
}

TEST(Placement, NumbersAreBounded) {
  EXPECT_THAT(placing("70000:0"), refuses(HasSubstr("character 1: node 70000 is too large; write one up to 65535")));
  EXPECT_THAT(placing("0:0-9999999999"), refuses(HasSubstr("character 5: device 9999999999 is too large; write one up "
                                                           "to 1023")));
  std::string many = "0:0-1023";
  for (int node = 1; node < 65; ++node) many.append(",").append(std::to_string(node)).append(":0-1023");
  EXPECT_THAT(placing(many), refuses(HasSubstr("more than 65536 replicas; write fewer devices")));
}

TEST(Placement, StrayCharactersAreShownWithWhatBelongsThere) {
  EXPECT_THAT(placing("0:0-6. 0:7"), refuses("parallel.placement \"0:0-6. 0:7\", character 7: \" \" stands where a "
                                             "node's number belongs; write e.g. 0:0-6.0:7"));
  EXPECT_THAT(placing("0"), refuses(HasSubstr("character 2: the text ends where ':' and a device belongs")));
  EXPECT_THAT(placing("0:"), refuses(HasSubstr("character 3: the text ends where a device's number belongs")));
  EXPECT_THAT(placing("0:0-"), refuses(HasSubstr("the text ends where a device's number belongs")));
  EXPECT_THAT(placing("0:0,"), refuses(HasSubstr("the text ends where a node's number belongs")));
  EXPECT_THAT(placing("0:0-3-4"), refuses(HasSubstr("\"-\" stands where '.' before the next stage")));
  EXPECT_THAT(placing("0:-1"), refuses(HasSubstr("\"-\" stands where a device's number belongs")));
  EXPECT_THAT(placing("0:0\n"), refuses(HasSubstr("\"\\n\" stands where")));
}

TEST(StageWeights, ArePositiveNumbersBetweenColons) {
  EXPECT_EQ(parse_stage_weights("10:1"), (std::vector<double>{10, 1}));
  EXPECT_EQ(parse_stage_weights("0.5:1:2.25"), (std::vector<double>{0.5, 1, 2.25}));
  EXPECT_EQ(parse_stage_weights("3"), (std::vector<double>{3}));
}

TEST(StageWeights, OthersAreRefusedByStage) {
  EXPECT_THAT(weighing("10:0"), refuses("parallel.stage_weights \"10:0\": \"0\", of stage 1, is not a positive number; "
                                        "write e.g. 10:1"));
  for (const char* text : {"", ":", "1:", ":1", "1::2", "-1:2", "1:x", "1 :2", "1,2", "nan:1", "1e999:1"}) {
    EXPECT_THAT(weighing(text), refuses(HasSubstr("is not a positive number; write e.g. 10:1"))) << text;
  }
}

}  // namespace
TEST(Placement, SharesAreOfStagesAndTheirReplicas) {
  EXPECT_EQ(parse_shares("5:3.1"), (Shares{{5, 3}, {1}}));
  EXPECT_EQ(parse_shares("7"), (Shares{{7}}));
  for (const char* wrong : {"", "5:", "5.", "5:0", "5:x", "1.5:-1", "5:3,1", "10000000"}) {
    EXPECT_THAT([=] { parse_shares(wrong); }, refuses(HasSubstr("is not a whole number from 1 to 1000000"))) << wrong;
  }
}

}  // namespace millrace::job
