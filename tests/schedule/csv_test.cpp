#include "millrace/schedule/csv.h"

#include <gmock/gmock.h>

#include "millrace/schedule/generators.h"

namespace millrace::schedule {
namespace {

using testing::HasSubstr;

std::string fault_of(const std::string& text) {
  try {
    read_csv(text, "list.csv");
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(Csv, WritesOneRowPerWorker) {
  EXPECT_EQ(to_csv(compute_schedule(chain(job::Mode::OneFOneB, 2, 2), 1)), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  EXPECT_EQ(to_csv(zb_h1_schedule(2, 2)), "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1F1,1I1,1W0,1W1\n");
}

TEST(Csv, LoweringDoesNotShow) {
  Pipeline pipeline = chain(job::Mode::GPipe, 2, 3);
  pipeline.num_workers = 3;
  pipeline.stages = {{0, 1}, {2}};
  pipeline.buckets = {4, 1};
  pipeline.rows = 2;
  const Schedule compute = compute_schedule(pipeline, 1);
  EXPECT_EQ(to_csv(lower(compute)), to_csv(compute));
}

TEST(Csv, ReadsBackWhatItWrote) {
  for (const Schedule& written : {compute_schedule(chain(job::Mode::OneFOneB, 3, 5), 1), interleaved_schedule(2, 3, 4),
                                  zb_h1_schedule(3, 4), zb_v_schedule(3, 7)}) {
    const Schedule read = read_csv(to_csv(written), "list.csv");
    EXPECT_EQ(read.workers, written.workers);
    EXPECT_EQ(read.pipeline, written.pipeline);
    EXPECT_EQ(read.microbatches, written.microbatches);
    EXPECT_TRUE(read.trains);
  }
}

TEST(Csv, SkipsIdleCellsBlankLinesAndComments) {
  const Schedule read = read_csv("# two workers\n\n 0F0 ,, ,0B0,\r\n,1F0,1B0 # the second\n", "list.csv");
  EXPECT_EQ(to_csv(read), "0F0,0B0\n1F0,1B0\n");
}

TEST(Csv, RowsThatRunTheSameMicrobatchesSplitThem) {
  const Schedule read = read_csv("0F0,0B0\n0F0,0B0\n0F0,0B0\n1F0,1B0\n1F0,1B0\n", "list.csv");
  EXPECT_EQ(read.pipeline.replicas, job::Replicas::Split);
  EXPECT_EQ(read.pipeline.stages, (std::vector<std::vector<int>>{{0, 1, 2}, {3, 4}}));
  EXPECT_EQ(read.pipeline.rows, 6);
}

TEST(Csv, RowsThatDivideTheMicrobatchesTakeTurns) {
  const Schedule read = read_csv("0F1,0B1\n0F0,0F2,0B0,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n", "list.csv");
  EXPECT_EQ(read.pipeline.replicas, job::Replicas::RoundRobin);
  EXPECT_EQ(read.pipeline.stages, (std::vector<std::vector<int>>{{1, 0}, {2}}));
}

TEST(Csv, ForwardsAloneDoNotTrain) { EXPECT_FALSE(read_csv("0F0,0F1\n1F0,1F1\n", "list.csv").trains); }

TEST(Csv, NamesRowCellAndWhatToWrite) {
  EXPECT_EQ(fault_of("0F0,0B0\n\n1F0,,1X0\n"),
            "list.csv:3: cell 3 is \"1X0\"; write STAGE, one of F B I W, MICRO-BATCH, such as 0F3");
  for (const char* cell : {"F0", "0F", "0f0", "-1F0", "0F-1", "0F0 1F0", "0F99999999999", "0F0B", "1.0F0"}) {
    EXPECT_THAT(fault_of(cell), HasSubstr("list.csv:1: cell 1 is")) << cell;
  }
  EXPECT_THAT(fault_of("0F0\n,,\n"), HasSubstr("list.csv:2: the row has no action"));
  EXPECT_THAT(fault_of("# nothing\n"), HasSubstr("no row; write one per worker"));
}

TEST(Csv, RefusesGapsAndMixtures) {
  EXPECT_THAT(fault_of("0F0,2F0\n"), HasSubstr("stage 2 appears, but no stage 1"));
  EXPECT_THAT(fault_of("0F0,0F1000000\n"), HasSubstr("micro-batch 1000000 appears, but no micro-batch 1"));
  EXPECT_THAT(fault_of("0F0,0F1\n0F2,0F3\n"), HasSubstr("micro-batch 1 of stage 0 runs here; 2 rows take turns"));
  EXPECT_THAT(fault_of("0F0,0F1\n0F0,0F1\n1F0\n1F1\n"), HasSubstr("let all split or all take turns"));
}

}  // namespace
}  // namespace millrace::schedule
