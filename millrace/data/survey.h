// What a stored set of pictures holds: how many of which class, of which sizes and formats, and which cannot be used.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "millrace/data/files/image_source.h"
#include "millrace/job/job.h"

namespace millrace::data {

struct SurveyOptions {
  int64_t most = 0;     // samples to look at, spread over the whole set; 0: all
  bool decode = false;  // whole pictures, not only their headers
  int channels = 3;
  job::Color color = job::Color::Convert;
  int threads = 0;                                            // 0: those of the machine, at most 8
  std::function<void(int64_t done, int64_t total)> progress;  // one call at a time
};

struct Survey {
  int64_t samples = 0;    // of the set
  int64_t looked_at = 0;  // all that follows is of these
  std::map<int32_t, int64_t> per_label;
  std::map<std::string, int64_t> formats;  // "JPEG", "PNG", "raw"
  std::vector<double> widths, heights, bytes;
  int64_t unusable = 0;
  std::vector<std::string> reasons;  // the first few, by sample
};

Survey survey(const ImageSource& source, const SurveyOptions& options);

}  // namespace millrace::data
