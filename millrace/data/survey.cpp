#include "millrace/data/survey.h"

#include <algorithm>
#include <mutex>

#include "millrace/data/bad_sample.h"
#include "millrace/data/files/parallel.h"
#include "millrace/data/image/decode.h"

namespace millrace::data {
namespace {

constexpr int64_t kPiece = 64;  // samples that a thread looks at together
constexpr size_t kReasons = 10;

struct Seen {
  int32_t label = 0;
  const char* format = nullptr;  // null: unusable
  double width = 0, height = 0, bytes = 0;
  std::string reason;
};

class Looker {
 public:
  Looker(const ImageSource& source, const SurveyOptions& options) : source_(source), options_(options) {}

  Seen look(int64_t sample) {
    Seen seen;
    try {
      source_.read(sample, stored_);
      seen.label = stored_.label;
      seen.bytes = static_cast<double>(stored_.bytes.size());
      if (stored_.raw_size > 0) {
        seen.format = "raw";
        seen.width = seen.height = stored_.raw_size;
        return seen;
      }
      const Decoder::Header header = decoder_.open(stored_.bytes, options_.channels, options_.color);
      if (options_.decode) decoder_.verify(image_);
      seen.format = header.format == PictureFormat::Jpeg ? "JPEG" : "PNG";
      seen.width = header.width;
      seen.height = header.height;
    } catch (const BadSample& bad) {
      const std::string place = source_.place(sample), why = bad.what();
      seen.format = nullptr;
      seen.reason = why.starts_with(place) ? why : place + ": " + why;
    }
    return seen;
  }

 private:
  const ImageSource& source_;
  const SurveyOptions& options_;
  StoredImage stored_;
  Decoder decoder_;
  Image image_;
};

}  // namespace

Survey survey(const ImageSource& source, const SurveyOptions& options) {
  Survey result;
  result.samples = source.size();
  result.looked_at = options.most > 0 ? std::min(options.most, source.size()) : source.size();
  std::vector<Seen> all(static_cast<size_t>(result.looked_at));
  std::mutex mutex;
  int64_t done = 0;
  const int64_t pieces = (result.looked_at + kPiece - 1) / kPiece;
  for_each_piece(pieces, options.threads, [&](int64_t piece) {
    Looker looker(source, options);
    const int64_t end = std::min((piece + 1) * kPiece, result.looked_at);
    for (int64_t i = piece * kPiece; i < end; ++i) {
      // Evenly spread over the set.
      const double step = static_cast<double>(result.samples) / static_cast<double>(result.looked_at);
      const int64_t sample =
          step == 1 ? i : std::min(static_cast<int64_t>(static_cast<double>(i) * step), result.samples - 1);
      all[static_cast<size_t>(i)] = looker.look(sample);
    }
    const std::lock_guard lock(mutex);
    done += end - piece * kPiece;
    if (options.progress) options.progress(done, result.looked_at);
  });
  for (Seen& seen : all) {
    if (!seen.format) {
      ++result.unusable;
      if (result.reasons.size() < kReasons) result.reasons.push_back(std::move(seen.reason));
      continue;
    }
    ++result.per_label[seen.label];
    ++result.formats[seen.format];
    result.widths.push_back(seen.width);
    result.heights.push_back(seen.height);
    result.bytes.push_back(seen.bytes);
  }
  return result;
}

}  // namespace millrace::data
