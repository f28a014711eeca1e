// GPUs of several processes, joined by NCCL.
#pragma once

#include <memory>

#include "millrace/backend/fabric.h"

namespace millrace::backend::cuda {

// None where NCCL was not built in.
std::unique_ptr<Fabric> make_nccl_fabric(int device);

}  // namespace millrace::backend::cuda
