#include "millrace/data/files/listing.h"

#include <gtest/gtest.h>

#include "data/files/stored_sets.h"

namespace millrace::data {
namespace {

class ListingTest : public StoredSets {};

TEST_F(ListingTest, NumbersInNamesAreComparedAsNumbers) {
  const std::vector<std::string> ordered{"",
                                         "part-0",
                                         "part-01",
                                         "part-1",
                                         "part-2",
                                         "part-010",
                                         "part-10",
                                         "part-10-of-2",
                                         "part-10-of-12",
                                         "part-99999999999999999998",
                                         "part-99999999999999999999",
                                         "part-a",
                                         "part_0"};
  for (size_t i = 0; i < ordered.size(); ++i) {
    for (size_t j = 0; j < ordered.size(); ++j) {
      EXPECT_EQ(in_number_order(ordered[i], ordered[j]), i < j) << ordered[i] << " and " << ordered[j];
    }
  }
}

TEST_F(ListingTest, ClassNamesAreReadAsWritten) {
  write_class_names(path("names"), {"tench", "great white shark", "7"});
  EXPECT_EQ(read_bytes(path("names")), "tench\ngreat white shark\n7\n");
  EXPECT_EQ(read_class_names(path("names")), (std::vector<std::string>{"tench", "great white shark", "7"}));
  write_bytes(path("names"), "a\r\nb\r\n\r\n\n");
  EXPECT_EQ(read_class_names(path("names")), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(read_class_names(path("nowhere")).empty());
  EXPECT_THROW(write_class_names(path("names"), {"two\nlines"}), std::invalid_argument);
}

}  // namespace
}  // namespace millrace::data
