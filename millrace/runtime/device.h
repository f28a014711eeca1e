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

// Threads of one worker: what the job says, or its share of the host's cores.
int thread_count(const job::Job& job, int workers_on_host = 1);

// Of a worker, for loading: the cores that computing leaves.
int loader_threads(const job::Job& job, int workers_on_host);
// "AMD EPYC 7B13, 2 threads": what a job's worker runs on, for records.
std::string device_name(const job::Job& job, int threads);
// As the processor names itself; "cpu" where it does not.
std::string processor_name();
// Must be used on the thread that made it.
std::unique_ptr<backend::Backend> make_backend(const job::Job& job, int threads, const OnMeasure& on_measure = {},
                                               int device = 0);

}  // namespace millrace::runtime
