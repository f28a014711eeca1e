// The published experiments of the systems that this one is measured against, as plain data.
#pragma once

#include <string>
#include <vector>

#include "millrace/job/job.h"

namespace millrace::plan {

struct Published {
  std::string id;      // as in jobs/reference/
  std::string system;  // that ran it
  std::string model;
  job::Mode mode = job::Mode::Dp;
  int nodes = 1;
  int gpus_per_node = 1;
  std::string placement, stage_weights;
  bool static_scheduling = true;  // one switch for it and for multi-buffering when published
  int batch_per_gpu = 0;          // of the first stage
  bool half = false;              // fp16 with dynamic loss scale
  std::string gpu;
  double memory_mib = 0;     // of the fullest GPU; 0: not published
  double samples_per_s = 0;  // counted in samples; 0: not published
  int microbatches = 1;      // of a batch
  int gpus() const { return nodes * gpus_per_node; }
};

const std::vector<Published>& published_experiments();

// How much faster layers that freeze made PipeTransformer's ten epochs of ViT-B/16 on 2 x 8 GPUs, by the share of the
// layers that may freeze at once: from the static pipeline of pt_vit_nofreeze to pt_vit_all.
struct PublishedGain {
  const char* alpha_text;
  double alpha;
  double gain;
};
const std::vector<PublishedGain>& published_elastic_gains();

// The experiment as a job; a model that is not built is refused when the job is planned.
job::Job job_of(const Published& experiment);

}  // namespace millrace::plan
