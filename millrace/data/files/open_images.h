// Opens a stored set of pictures by its kind, and tells the kind of one that is given without it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "millrace/data/files/image_kind.h"
#include "millrace/data/files/image_source.h"
#include "millrace/data/skip_log.h"

namespace millrace::data {

// The training or the test split below `path`. CIFAR's files have their names; of the other kinds a folder with
// `train` and `validation`, `val` or `test` in it is a set of splits, any other is itself the split, whichever is
// asked for. `classes`: of the model, 0: any. `skip`: where to log what is left out; null: errors stop.
std::unique_ptr<ImageSource> open_images(ImageKind kind, const std::string& path, bool train, int classes,
                                         SkipLog* skip);

// Where that split stands; nullopt where the set has only the other one.
std::optional<std::string> split_path(ImageKind kind, const std::string& path, bool train);

// From the names of the files, and the sizes of single ones; nullopt: none of the layouts. `path` must exist.
std::optional<ImageKind> guess_kind(const std::string& path);

}  // namespace millrace::data
