// convert.json: what a conversion reads, how, and which of its parts are finished. By it a conversion knows its own
// destination again, and what is left to do.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "millrace/data/files/convert.h"

namespace millrace::data {

struct FinishedPart {
  int64_t samples = 0;
  int64_t bytes = 0;
  std::vector<std::string> skipped;
};

class ConvertManifest {
 public:
  // Takes the one in the destination up or begins it. Throws where the destination holds something else, or was
  // begun from another source or with other options.
  ConvertManifest(const ImageSource& source, const std::string& source_path, const std::string& destination,
                  const ConvertOptions& options, int parts);

  const std::map<int, FinishedPart>& finished() const { return finished_; }

  // Written through at once. Safe to call from several threads.
  void finish(int part, FinishedPart about);

 private:
  void read(const std::string& identity);
  void write() const;

  std::string path_;
  std::string identity_;  // source and options, as JSON
  std::mutex mutex_;
  std::map<int, FinishedPart> finished_;
};

}  // namespace millrace::data
