#include "millrace/schedule/picture.h"

#include <gtest/gtest.h>

#include "millrace/schedule/generators.h"

namespace millrace::schedule {
namespace {

std::string picture_of(const Schedule& schedule, int most_columns) {
  return draw(schedule, simulate(schedule, unit_costs(schedule.pipeline, 1, 1, 1)), most_columns);
}

TEST(Picture, HasOneRowPerWorkerAndOneColumnPerAction) {
  EXPECT_EQ(picture_of(compute_schedule(chain(job::Mode::OneFOneB, 2, 2), 1), 100),
            "0 FF..BB.BB\n"
            "1 .FBBFBB..\n");
  EXPECT_EQ(picture_of(zb_h1_schedule(2, 2), 100),
            "0 FF.IWIW\n"
            "1 .FIFIWW\n");
}

TEST(Picture, LongTimelinesAreSqueezed) {
  const std::string text = picture_of(compute_schedule(chain(job::Mode::GPipe, 3, 50), 1), 40);
  EXPECT_EQ(text.find('\n'), 2u + 40u);
}

TEST(Picture, MessagesTakeNoColumns) {
  EXPECT_EQ(picture_of(lower(zb_h1_schedule(2, 2)), 100), picture_of(zb_h1_schedule(2, 2), 100));
}

}  // namespace
}  // namespace millrace::schedule
