#include "millrace/state/state.h"

#include <algorithm>
#include <span>

#include "millrace/base/random.h"
#include "millrace/state/normals.h"

namespace millrace::state {
namespace {

constexpr size_t kWordsPerBlock = 4;

void fill_uniforms(const RandomStream& stream, uint64_t first_block, float bound, std::span<float> out) {
  for (size_t begin = 0; begin < out.size(); begin += kWordsPerBlock) {
    const RandomBlock words = stream.at(first_block + begin / kWordsPerBlock);
    const size_t count = std::min(kWordsPerBlock, out.size() - begin);
    for (size_t i = 0; i < count; ++i) out[begin + i] = bound * (2.0f * uniform(words[i]) - 1.0f);
  }
}

// Calls fill(first_block, part) for parts of the data, each on any thread: a part's numbers are its own.
template <typename Fill>
void fill_in_parts(std::vector<float>& data, Fill fill) {
  constexpr size_t kPart = 1 << 16;
  const auto num_parts = static_cast<int64_t>((data.size() + kPart - 1) / kPart);
#pragma omp parallel for if (num_parts > 1)
  for (int64_t part = 0; part < num_parts; ++part) {
    const size_t begin = static_cast<size_t>(part) * kPart;
    fill(begin / kWordsPerBlock, std::span(data).subspan(begin, std::min(kPart, data.size() - begin)));
  }
}

std::vector<float> initial_values(const graph::Param& param, uint64_t seed) {
  const auto scale = static_cast<float>(param.init.scale);
  const RandomStream stream(RandomStream::mix(seed, hash_name(param.name)), 0, 0);
  std::vector<float> data(static_cast<size_t>(param.shape.elements()));
  fill_in_parts(data, [&](uint64_t first_block, std::span<float> part) {
    switch (param.init.kind) {
      case graph::Init::Kind::Constant: std::fill(part.begin(), part.end(), scale); break;
      case graph::Init::Kind::Uniform: fill_uniforms(stream, first_block, scale, part); break;
      case graph::Init::Kind::Normal: fill_normals(stream, first_block, scale, part); break;
    }
  });
  return data;
}

}  // namespace

State initial_state(const graph::Graph& graph, uint64_t seed) {
  State state;
  for (const graph::Param& param : graph.params) {
    state.params[param.name] = Tensor{param.shape, initial_values(param, seed)};
  }
  return state;
}

void merge(State& state, State& part) {
  state.params.merge(part.params);
  state.velocity.merge(part.velocity);
  state.second_moment.merge(part.second_moment);
  state.watched.merge(part.watched);
  if (state.older.size() < part.older.size()) state.older.resize(part.older.size());
  for (size_t age = 0; age < part.older.size(); ++age) state.older[age].merge(part.older[age]);
  state.updates.merge(part.updates);
  if (state.loss_scale.empty()) state.loss_scale = part.loss_scale;
}

}  // namespace millrace::state
