// From what a job says of its device to the backend that is it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "millrace/backend/backend.h"
#include "millrace/job/job.h"

namespace millrace::runtime {

// Told what is being measured while kernels are chosen; that can take seconds on a machine's first run.
using OnMeasure = std::function<void(const std::string& work)>;

int thread_count(const job::Job& job);
std::unique_ptr<backend::Backend> make_backend(const job::Job& job, const OnMeasure& on_measure = {});

}  // namespace millrace::runtime
