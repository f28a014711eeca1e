#include "millrace/data/files/convert.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <mutex>
#include <optional>

#include "millrace/base/error.h"
#include "millrace/base/pending_file.h"
#include "millrace/data/bad_sample.h"
#include "millrace/data/files/convert_manifest.h"
#include "millrace/data/files/convert_target.h"
#include "millrace/data/files/parallel.h"
#include "millrace/data/sampler.h"

namespace millrace::data {
namespace {

namespace fs = std::filesystem;

// Keeps a second conversion out of the folder. Some network file systems cannot lock; there it is not kept out.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder)
      : descriptor_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (descriptor_ < 0 || ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
    ::close(descriptor_);
    fail_input("{}: another conversion is writing there; wait for it, or name a new folder", folder);
  }
  ~FolderLock() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_;
};

class Conversion {
 public:
  Conversion(const ImageSource& source, const ConvertOptions& options, int parts, const Target& target,
             ConvertManifest& manifest)
      : source_(source), options_(options), parts_(parts), target_(target), manifest_(manifest) {
    if (options.shuffle) order_ = epoch_order(source.size(), options.seed, 0);
    for (int part = 0; part < parts; ++part) {
      const auto found = manifest.finished().find(part);
      const bool finished = found != manifest.finished().end() && target.has_part(part, found->second.bytes);
      if (finished) {
        done_ += first_of(part + 1) - first_of(part);
      } else {
        left_.push_back(part);
      }
    }
  }

  int num_left() const { return static_cast<int>(left_.size()); }

  void run() {
    for_each_piece(num_left(), options_.threads, [this](int64_t piece) {
      try {
        write_part(left_[static_cast<size_t>(piece)]);
      } catch (...) {
        stop_ = true;
        throw;
      }
    });
  }

 private:
  int64_t first_of(int part) const { return source_.size() * part / parts_; }

  void write_part(int part) {
    const auto writer = target_.begin_part(part);
    FinishedPart about;
    StoredImage picture;
    for (int64_t position = first_of(part); position < first_of(part + 1); ++position) {
      if (stop_) return;  // another thread failed; what it threw is what counts
      const int64_t sample = order_ ? (*order_)[position] : position;
      try {
        write_sample(*writer, sample, position, picture);
        ++about.samples;
      } catch (const BadSample& error) {
        if (!options_.skip_bad) throw;
        about.skipped.emplace_back(error.what());
      }
      report();
    }
    if (stop_) return;
    writer->finish();
    about.bytes = writer->bytes();
    manifest_.finish(part, std::move(about));
  }

  // What a source throws names the place, what a target or a decoder throws does not.
  void write_sample(TargetPart& writer, int64_t sample, int64_t position, StoredImage& picture) const {
    source_.read(sample, picture);
    try {
      writer.add(picture, position);
    } catch (const BadSample& error) {
      fail_sample("{}: {}", source_.place(sample), error.what());
    } catch (const std::invalid_argument& error) {
      fail_input("{}: {}", source_.place(sample), error.what());
    }
  }

  void report() {
    const std::lock_guard lock(mutex_);
    ++done_;
    if (options_.progress && !stop_) options_.progress(done_, source_.size());
  }

  const ImageSource& source_;
  const ConvertOptions& options_;
  int parts_;
  const Target& target_;
  ConvertManifest& manifest_;
  std::optional<Permutation> order_;
  std::vector<int> left_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  int64_t done_ = 0;
};

void check(const ConvertOptions& options) {
  if (options.parts < 0) fail_input("--parts {}; write 1 or more", options.parts);
  if (options.quality < 0 || options.quality > 100) fail_input("--quality {}; write 1-100", options.quality);
}

}  // namespace

ConvertResult convert(const ImageSource& source, const std::string& source_path, const std::string& destination,
                      const ConvertOptions& options) {
  check(options);
  if (fs::exists(destination) && !fs::is_directory(destination)) {
    fail_input("{}: is a file; name a new folder to convert into", destination);
  }
  const auto target = make_target(source, destination, options);
  fs::create_directories(destination);
  const FolderLock lock(destination);
  const int parts = parts_for(options, source.size());
  ConvertManifest manifest(source, source_path, destination, options, parts);
  PendingFile::remove_leftovers(destination);

  Conversion conversion(source, options, parts, *target, manifest);
  ConvertResult result;
  result.parts = parts;
  result.resumed_parts = parts - conversion.num_left();
  conversion.run();
  target->finish();
  for (const auto& [part, about] : manifest.finished()) {
    result.samples += about.samples;
    result.bytes += about.bytes;
    result.skipped.insert(result.skipped.end(), about.skipped.begin(), about.skipped.end());
  }
  return result;
}

}  // namespace millrace::data
