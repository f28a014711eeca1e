// Stands in for nccl_fabric.cpp where NCCL was not found.
#include "millrace/backend/cuda/nccl_fabric.h"

namespace millrace::backend::cuda {

std::unique_ptr<Fabric> make_nccl_fabric(int /*device*/) { return nullptr; }

}  // namespace millrace::backend::cuda
