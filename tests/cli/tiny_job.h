// A job that trains in a fraction of a second, on whichever device this build has.
#pragma once

#include <string>

namespace millrace::cli {

constexpr const char* kDevice = MILLRACE_HAS_CPU ? "cpu" : "reference";

// 60 samples in batches of 8: the last of an epoch has 4. Eight steps an epoch.
inline std::string tiny_job() {
  return std::string("name: tiny\nbatch: 8\nepochs: 2\nthreads: 1\ndevice: ") + kDevice + R"(
model:
  name: resnet_small
  classes: 6
  image_size: 4
data:
  kind: generated
  train_samples: 60
  test_samples: 30
optimizer:
  lr: 0.05
)";
}

}  // namespace millrace::cli
