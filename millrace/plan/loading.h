// What a replica of a stage loads of the data, as a run does it and a prediction counts it.
#pragma once

#include "millrace/data/loader.h"
#include "millrace/job/job.h"
#include "millrace/plan/plan.h"

namespace millrace::plan {

// Of each batch, or of its own batches in turn, its rows of each micro-batch.
// `first_batch`: where in the data the run begins, in batches since its very first.
data::LoaderOptions loader_options(const job::Job& job, const Plan& plan, int stage, int replica,
                                   int64_t first_batch = 0);

// The same for a pass over `samples` in their own order, a micro-batch at a time; none to load where num_batches is 0.
data::LoaderOptions evaluation_options(const job::Job& job, const Plan& plan, int stage, int replica, int64_t samples);

// Most stages read nothing of the data: the first has images, the last labels; every attention looks at the tokens. One
// batch that is the same for ever, and in one part,
// stays where it is read.
bool needs_loader(const data::Dataset& dataset, const Plan& plan, int stage, const data::LoaderOptions& options);

// What a GPU sets aside for a micro-batch on its way to it, while it computes another; batches wait on the host.
struct LandingBytes {
  int64_t features = 0, labels = 0;
  int64_t all() const { return features + labels; }
};
LandingBytes landing_bytes(const data::Dataset& dataset, bool features, bool labels, int64_t rows);
constexpr size_t landing_piece(size_t row_bytes, int64_t rows) {
  constexpr size_t kAlign = 256;
  return (row_bytes * static_cast<size_t>(rows) + kAlign - 1) / kAlign * kAlign;
}

// What loading takes of the memory a stage is planned in.
int64_t loading_bytes(const job::Job& job, const data::Dataset& dataset, const Plan& plan, int stage, int replica);

}  // namespace millrace::plan
