// Where a conversion writes to: how each kind of set is cut into parts and how a picture gets into one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "millrace/data/files/convert.h"

namespace millrace::data {

// One part being written; gone unless finished.
class TargetPart {
 public:
  virtual ~TargetPart() = default;
  // `position`: in the order of the whole conversion. Throws BadSample where the picture cannot be stored.
  virtual void add(const StoredImage& picture, int64_t position) = 0;
  virtual void finish() = 0;
  virtual int64_t bytes() const = 0;
};

class Target {
 public:
  virtual ~Target() = default;
  virtual std::unique_ptr<TargetPart> begin_part(int part) const = 0;
  // Whether what a finished part wrote is still there.
  virtual bool has_part(int part, int64_t bytes) const = 0;
  // Class names, and checks over all parts.
  virtual void finish() const = 0;
};

int parts_for(const ConvertOptions& options, int64_t samples);

// The folder exists. Refuses what the target cannot hold.
std::unique_ptr<Target> make_target(const ImageSource& source, const std::string& destination,
                                    const ConvertOptions& options);

}  // namespace millrace::data
