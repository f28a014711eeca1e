// The reference backend: plain loops over plain row-major memory, in float or double as the program's buffers say.
// Written to be seen correct, not to be fast; the other backends are tested against it.
#pragma once

#include <memory>

#include "millrace/backend/optimizer.h"

namespace millrace::backend {

std::unique_ptr<Backend> make_reference_backend(const OptimizerOptions& sgd);

}  // namespace millrace::backend
