#include <algorithm>

#include "millrace/backend/cuda/attention_dropout.cuh"
#include "millrace/backend/cuda/philox.cuh"

namespace millrace::backend::cuda {
namespace {

constexpr int kSide = 32;  // of a tile
constexpr int kMostWarps = 8;

// A block has 32 queries of a head, a warp every so many tiles of their keys: a lane draws the keys of a query, and all
// turn them for the rows of the keys. A query's weights may begin in the middle of a Philox block.
__global__ void __launch_bounds__(kMostWarps * 32)
    draw_tiles(AttentionProblem p, const StepContext* context, KeptWeights to) {
  const int lane = static_cast<int>(threadIdx.x) % 32, num_warps = static_cast<int>(blockDim.x) / 32;
  const int head = static_cast<int>(blockIdx.x), words = KeptWeights::words_of_row(p);  // head: of all samples
  const int first_query = static_cast<int>(blockIdx.y) * kSide, query = first_query + lane;
  PhiloxKeys keys(mix(mix(context->seed, p.dropout.purpose), static_cast<uint64_t>(context->step)));
  keys.keep();
  const uint64_t sample = static_cast<uint64_t>(context->first_row + head / p.heads);
  const uint64_t row = (static_cast<uint64_t>(head % p.heads) * p.length + query) * p.length;
  const uint32_t threshold = p.dropout.threshold << 8;  // the upper 24 bits of a number count
  const bool keeps_any = p.dropout.threshold < 1u << 24;
  const int end = p.end_of_keys(first_query + kSide - 1);
  for (int first_key = static_cast<int>(threadIdx.x) / 32 * kSide; first_key < end; first_key += num_warps * kSide) {
    const uint64_t first = row + first_key;
    auto four = [&](int block) {
      const PhiloxBlock drawn = philox(keys, sample, first / 4 + block);
      uint32_t bits = 0;
#pragma unroll
      for (int e = 0; e < 4; ++e) bits |= drawn.at[e] >= threshold ? 1u << e : 0;
      return bits;
    };
    uint32_t word = 0;
#pragma unroll
    for (int block = 0; block < kSide / 4; ++block) word |= four(block) << (4 * block);
    if (p.length % 4 != 0) word = __funnelshift_r(word, four(kSide / 4), static_cast<uint32_t>(first % 4));
    if (!keeps_any) word = 0;
    const int64_t rows = int64_t{head} * p.length;
    if (to.by_query && query < p.length) to.by_query[(rows + query) * words + first_key / 32] = word;
    if (!to.by_key) continue;
    uint32_t turned = 0;
#pragma unroll
    for (int j = 0; j < kSide; ++j) {
      const uint32_t of_key = __ballot_sync(~0u, word >> j & 1);
      if (lane == j) turned = of_key;
    }
    if (first_key + lane < p.length) to.by_key[(rows + first_key + lane) * words + first_query / 32] = turned;
  }
}

}  // namespace

void KeptWeights::draw(const Device& device, const AttentionProblem& p) const {
  const int tiles = (p.length + kSide - 1) / kSide;
  const dim3 blocks(static_cast<unsigned>(p.rows * p.heads), static_cast<unsigned>(tiles));
  draw_tiles<<<blocks, static_cast<unsigned>(32 * std::min(tiles, kMostWarps)), 0, device.stream>>>(p, device.context,
                                                                                                    *this);
  MILLRACE_LAUNCHED("attention draw_tiles");
}

}  // namespace millrace::backend::cuda
