#include "millrace/backend/cpu/onednn.h"

#include <cstring>
#include <unordered_map>
#include <utility>

#include "millrace/backend/cpu/blocked.h"

namespace millrace::backend::cpu {
namespace {

constexpr size_t kAlignment = 64;
size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

struct Stage {
  dnnl::primitive primitive;
  std::unordered_map<int, dnnl::memory> arguments;
};

dnnl::primitive reorder_primitive(OneDnn& dnn, const Desc& from, const Desc& to) {
  return dnnl::reorder(dnnl::reorder::primitive_desc(dnn.engine, from, dnn.engine, to, attributes()));
}

size_t reorder_scratch(OneDnn& dnn, const Desc& from, const Desc& to) {
  return dnnl::reorder::primitive_desc(dnn.engine, from, dnn.engine, to, attributes()).scratchpad_desc().get_size();
}

dnnl::memory::dims dims_of(const Shape& shape) { return {shape.begin(), shape.end()}; }

}  // namespace

Desc plain_desc(const Shape& shape) {
  static constexpr Tag kTags[] = {Tag::a, Tag::a, Tag::ab, Tag::abc, Tag::abcd, Tag::abcde};
  return {dims_of(shape), dnnl::memory::data_type::f32, kTags[shape.rank()]};
}

Desc blocked_desc(const Shape& shape) {
  return {dims_of(shape), dnnl::memory::data_type::f32, kBlock == 16 ? Tag::nChw16c : Tag::nChw8c};
}

Desc any_layout(const Desc& desc) { return {desc.dims(), dnnl::memory::data_type::f32, Tag::any}; }

dnnl::primitive_attr attributes(bool relu) {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (relu) {
    dnnl::post_ops ops;
    ops.append_eltwise(1.0f, dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
    attr.set_post_ops(ops);
  }
  return attr;
}

Kernel make_kernel(std::shared_ptr<OneDnn> dnn, std::string algorithm, const dnnl::primitive& primitive,
                   const Desc& scratchpad, const std::vector<Operand>& operands) {
  Kernel kernel;
  kernel.algorithm = std::move(algorithm);
  // Reorders run before and after the primitive, never beside it: they share its scratchpad.
  size_t shared = scratchpad.get_size();
  size_t own = 0;
  for (const Operand& operand : operands) {
    if (operand.stored == operand.wanted) continue;
    const auto& [from, to] =
        operand.is_output ? std::pair(operand.wanted, operand.stored) : std::pair(operand.stored, operand.wanted);
    shared = std::max(shared, reorder_scratch(*dnn, from, to));
    own += aligned(operand.wanted.get_size());
  }
  shared = aligned(shared);
  kernel.scratch_bytes = shared + own;

  kernel.bind = [=](const Bindings& bindings) -> Task {
    auto* scratch = static_cast<std::byte*>(bindings.scratch);
    std::byte* next = scratch + shared;
    auto scratch_memory = [&](const Desc& desc) { return dnnl::memory(desc, dnn->engine, scratch); };
    std::vector<Stage> before, after;
    Stage main{primitive, {{DNNL_ARG_SCRATCHPAD, scratch_memory(scratchpad)}}};
    for (const Operand& operand : operands) {
      void* data = operand.is_output ? bindings.writes[operand.index] : bindings.reads[operand.index];
      const dnnl::memory stored(operand.stored, dnn->engine, data);
      if (operand.stored == operand.wanted) {
        main.arguments.insert({operand.argument, stored});
        continue;
      }
      const dnnl::memory wanted(operand.wanted, dnn->engine, next);
      next += aligned(operand.wanted.get_size());
      main.arguments.insert({operand.argument, wanted});
      const dnnl::memory& from = operand.is_output ? wanted : stored;
      const dnnl::memory& to = operand.is_output ? stored : wanted;
      const dnnl::reorder::primitive_desc pd(from, to, attributes());
      (operand.is_output ? after : before)
          .push_back({dnnl::reorder(pd),
                      {{DNNL_ARG_FROM, from},
                       {DNNL_ARG_TO, to},
                       {DNNL_ARG_SCRATCHPAD, scratch_memory(pd.scratchpad_desc())}}});
    }
    std::vector<Stage> stages = std::move(before);
    stages.push_back(std::move(main));
    for (Stage& stage : after) stages.push_back(std::move(stage));
    return [dnn, stages = std::move(stages)](const StepContext&) {
      for (const Stage& stage : stages) stage.primitive.execute(dnn->stream, stage.arguments);
    };
  };
  return kernel;
}

Kernel make_reorder(std::shared_ptr<OneDnn> dnn, const Desc& from, const Desc& to) {
  const Operand source{DNNL_ARG_FROM, 0, false, from, from};
  const Operand target{DNNL_ARG_TO, 0, true, to, to};
  const dnnl::primitive primitive = reorder_primitive(*dnn, from, to);
  const Desc scratchpad =
      dnnl::reorder::primitive_desc(dnn->engine, from, dnn->engine, to, attributes()).scratchpad_desc();
  return make_kernel(std::move(dnn), "reorder", primitive, scratchpad, {source, target});
}

void reorder_now(OneDnn& dnn, const Desc& from, const void* source, const Desc& to, void* target) {
  if (from == to) {
    std::memcpy(target, source, from.get_size());
    return;
  }
  dnnl::memory in(from, dnn.engine, const_cast<void*>(source));
  dnnl::memory out(to, dnn.engine, target);
  dnnl::stream own(dnn.engine);  // a snapshot is copied while the worker computes
  dnnl::reorder(in, out).execute(own, in, out);
  own.wait();
}

}  // namespace millrace::backend::cpu
