// All that is said to oneDNN passes here: descriptors of our buffers, and primitives wrapped as kernels that
// bring their operands into the layout the primitive wants. Written for the v2 API.
#pragma once

#include <dnnl.hpp>
#include <memory>
#include <string>
#include <vector>

#include "millrace/backend/backend.h"

namespace millrace::backend::cpu {

using Desc = dnnl::memory::desc;
using Tag = dnnl::memory::format_tag;

struct OneDnn {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
};

// Row-major.
Desc plain_desc(const Shape& shape);
// Channel blocks of kBlock over four axes.
Desc blocked_desc(const Shape& shape);
// Same shape, layout left to the primitive.
Desc any_layout(const Desc& desc);

// One operand of a primitive: `stored` is how it lies in our buffer, `wanted` how the primitive takes it.
struct Operand {
  int argument = 0;  // DNNL_ARG_...
  int index = 0;     // into Bindings::reads or ::writes
  bool is_output = false;
  Desc stored;
  Desc wanted;
};

// Scratch in the bindings holds the primitive's own scratchpad and every operand that needs a reorder.
Kernel make_kernel(std::shared_ptr<OneDnn> dnn, std::string algorithm, const dnnl::primitive& primitive,
                   const Desc& scratchpad, const std::vector<Operand>& operands);

// A plain change of layout from read 0 to write 0.
Kernel make_reorder(std::shared_ptr<OneDnn> dnn, const Desc& from, const Desc& to);
void reorder_now(OneDnn& dnn, const Desc& from, const void* source, const Desc& to, void* target);

// Scratchpads are ours to place; `relu` appends the activation to what the primitive computes.
dnnl::primitive_attr attributes(bool relu = false);

}  // namespace millrace::backend::cpu
