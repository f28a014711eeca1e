// The one-way order of the folders, read from the sources themselves.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace millrace {
namespace {

namespace fs = std::filesystem;

// A folder may include itself and those before it.
const std::vector<std::string> kOrder{"base",   "job",      "graph", "model", "data",  "cache",   "backend", "profile",
                                      "memory", "schedule", "plan",  "comm",  "state", "runtime", "report",  "cli"};

struct Include {
  fs::path file;  // relative to the repository
  int line = 0;
  std::string target;
  std::string where() const { return file.string() + ":" + std::to_string(line) + " includes " + target; }
};

// What stands between the quotes or brackets of an include; empty for any other line.
std::string included_by(const std::string& line) {
  const size_t hash = line.find_first_not_of(" \t");
  if (hash == std::string::npos || line[hash] != '#') return {};
  const size_t word = line.find_first_not_of(" \t", hash + 1);
  if (word == std::string::npos || line.compare(word, 7, "include") != 0) return {};
  const size_t open = line.find_first_of("<\"", word), close = line.find_last_of(">\"");
  return open < close && close != std::string::npos ? line.substr(open + 1, close - open - 1) : std::string();
}

std::vector<Include> all_includes() {
  const fs::path root(MILLRACE_SOURCE_DIR);
  std::vector<Include> includes;
  for (const char* top : {"millrace", "cli"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      const std::string extension = entry.path().extension();
      if (extension != ".h" && extension != ".cpp" && extension != ".cu" && extension != ".cuh") continue;
      std::ifstream stream(entry.path());
      std::string text;
      for (int line = 1; std::getline(stream, text); ++line) {
        const std::string target = included_by(text);
        if (!target.empty()) includes.push_back({fs::relative(entry.path(), root), line, target});
      }
    }
  }
  return includes;
}

bool starts_with(const std::string& text, const std::string& start) { return text.rfind(start, 0) == 0; }

// "millrace/backend/cpu/conv.cpp" is in "backend", "cli/main.cpp" in "cli"; empty for what is not ours.
std::string folder_of(const std::string& path) {
  if (starts_with(path, "cli/")) return "cli";
  if (!starts_with(path, "millrace/")) return {};
  const size_t begin = std::string("millrace/").size();
  return path.substr(begin, path.find('/', begin) - begin);
}

int rank(const std::string& folder) {
  const auto found = std::find(kOrder.begin(), kOrder.end(), folder);
  return found == kOrder.end() ? -1 : static_cast<int>(found - kOrder.begin());
}

TEST(Architecture, EveryFolderHasItsPlaceInTheOrder) {
  for (const auto& entry : fs::directory_iterator(fs::path(MILLRACE_SOURCE_DIR) / "millrace")) {
    EXPECT_GE(rank(entry.path().filename()), 0) << entry.path() << " is not in the order of this test";
  }
}

TEST(Architecture, IncludesGoOneWay) {
  size_t ours = 0;
  for (const Include& include : all_includes()) {
    const std::string to = folder_of(include.target);
    if (to.empty()) continue;
    ++ours;
    EXPECT_GE(rank(to), 0) << include.where();
    EXPECT_LE(rank(to), rank(folder_of(include.file))) << include.where();
  }
  EXPECT_GT(ours, 100u) << "the scan finds too little";
}

TEST(Architecture, IncludedFilesExist) {
  for (const Include& include : all_includes()) {
    if (folder_of(include.target).empty()) continue;
    EXPECT_TRUE(fs::exists(fs::path(MILLRACE_SOURCE_DIR) / include.target)) << include.where();
  }
}

// Backends know their interface, never each other. A stub beside them stands in for the one it is named after.
TEST(Architecture, BackendsDoNotIncludeEachOther) {
  const fs::path backends = "millrace/backend";
  for (const Include& include : all_includes()) {
    const fs::path from = include.file.parent_path(), to = fs::path(include.target).parent_path();
    if (from.parent_path() == backends && to.parent_path() == backends) {
      EXPECT_EQ(from, to) << include.where();
    }
  }
}

TEST(Architecture, VendorHeadersStayInTheirFolder) {
  const std::vector<std::pair<std::string, std::string>> vendors{{"dnnl", "millrace/backend/cpu"},
                                                                 {"oneapi/dnnl", "millrace/backend/cpu"},
                                                                 {"cuda", "millrace/backend/cuda"},
                                                                 {"cudnn", "millrace/backend/cuda"},
                                                                 {"cublas", "millrace/backend/cuda"},
                                                                 {"nccl", "millrace/backend/cuda"},
                                                                 {"mpi", "millrace/comm/mpi"},
                                                                 {"yaml-cpp", "millrace/job"},
                                                                 {"jpeglib", "millrace/data/image"},
                                                                 {"jerror", "millrace/data/image"},
                                                                 {"png.h", "millrace/data/image"},
                                                                 {"utf8proc", "millrace/data/text"},
                                                                 {"google/protobuf", "millrace/data/files"},
                                                                 {"CLI/", "cli"}};
  size_t seen = 0;
  for (const Include& include : all_includes()) {
    for (const auto& [prefix, folder] : vendors) {
      if (!starts_with(include.target, prefix)) continue;
      ++seen;
      EXPECT_EQ(include.file.parent_path(), folder) << include.where();
    }
  }
  EXPECT_GT(seen, 0u);
}

// A header that cannot be read alone hides an include.
TEST(Architecture, HeadersAreGuarded) {
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(MILLRACE_SOURCE_DIR) / "millrace")) {
    if (entry.path().extension() != ".h" && entry.path().extension() != ".cuh") continue;
    std::ifstream stream(entry.path());
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    EXPECT_NE(text.find("#pragma once"), std::string::npos) << entry.path();
    EXPECT_EQ(text.rfind("//", 0), 0u) << entry.path() << " does not open with what it holds and why";
  }
}

}  // namespace
}  // namespace millrace
