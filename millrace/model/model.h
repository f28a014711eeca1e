// The models, written against graph::Builder with torchvision's layer names, shapes and initialisation, so
// that its weight files fit as they are.
#pragma once

#include <string>
#include <vector>

#include "millrace/graph/program.h"
#include "millrace/job/job.h"

namespace millrace::model {

// The names `model.name` knows.
const std::vector<std::string>& model_names();

// The forward graph up to the loss, as the model is written: unfused.
graph::Graph build(const job::Model& model, int64_t batch, double label_smoothing, DType dtype = DType::F32);

// What values of a job have.
DType value_type(job::Precision precision);

// What the optimizer keeps of each parameter and needs to know before an update.
graph::UpdateRule update_rule(const job::Job& job);

// The graph that a job trains on micro-batches of so many rows: fused, its first layers frozen if the job says so.
graph::Graph training_graph(const job::Job& job, int64_t rows);

}  // namespace millrace::model
