#include "millrace/memory/stage_layout.h"

#include <gtest/gtest.h>

#include <set>

#include "millrace/model/model.h"

namespace millrace::memory {
namespace {

using graph::BufferId;
using graph::BufferRole;

// A snapshot is one copy: it must hold all that a checkpoint needs, and little else.
TEST(StageLayout, AStateIsOnePiece) {
  const std::set<BufferRole> always{BufferRole::Statistic, BufferRole::Agreement, BufferRole::Master,
                                    BufferRole::Velocity, BufferRole::SecondMoment};
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    for (const int versions : {1, 3}) {
      for (const bool keeps_gradients : {false, true}) {
        SCOPED_TRACE(std::string(name_of(dtype)) + ", versions: " + std::to_string(versions));
        const graph::Graph graph =
            model::build({.name = "resnet_small", .classes = 10, .image_size = 16}, 2, 0.0, dtype);
        const graph::UpdateRule rule{graph::OpKind::AdamStep, true, true, true};
        const graph::Program program =
            graph::training_program(graph, {.rule = rule, .keeps_gradients = keeps_gradients});
        std::vector<size_t> bytes;
        for (const graph::Buffer& buffer : program.buffers) {
          bytes.push_back(static_cast<size_t>(buffer.shape.elements()) * bytes_of(buffer.dtype));
        }
        const MemoryPlan plan = plan_memory(program, bytes, std::vector<size_t>(program.nodes.size(), 0));
        const Copies copies{1, 1, versions};
        const StageLayout layout(copies, {{program, bytes, plan}});
        size_t wanted = 0;
        for (BufferId id = 0; id < static_cast<BufferId>(program.buffers.size()); ++id) {
          const BufferRole role = program.buffers[id].role;
          if (!is_persistent(role)) continue;
          const bool is_weight = role == BufferRole::Weight;
          const bool belongs = always.contains(role) || (is_weight && (!is_half(dtype) || versions > 1));
          for (int version = 0; version < (is_weight ? versions : 1); ++version) {
            const size_t begin = layout.offset(0, id, {0, 0, version}), end = begin + align_up(bytes[id]);
            const bool inside = begin >= layout.state_offset() && end <= layout.state_offset() + layout.state_bytes();
            EXPECT_EQ(inside, belongs) << program.buffers[id].name << " " << name_of(role) << " " << version;
            if (belongs) wanted += align_up(bytes[id]);
          }
        }
        EXPECT_EQ(layout.state_bytes(), wanted);
      }
    }
  }
}

}  // namespace
}  // namespace millrace::memory
