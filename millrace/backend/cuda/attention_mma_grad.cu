// Backward: one kernel for the gradient of the queries and one for that of keys and values. Each makes the weights once
// more; that nothing is added by two blocks makes the results the same bits every time.
//
// With dropout, everything below is without its scale, which the stores make good: `along` is divided by it.
#include "millrace/backend/cuda/attention_fragments.cuh"
#include "millrace/backend/cuda/attention_mma.cuh"

namespace millrace::backend::cuda::mma_attention {
namespace {

template <typename T>
struct Operands {
  const T *dy, *qkv, *y;
  const float* saved;
  // For each query: the sum of dy y, which is that of all weights times their gradients, so that the softmax's gradient
  // needs no sum over keys.
  float* along;
  KeptWeights kept;
  T* dqkv;
};

// Columns whose scores and their gradients are in registers at once.
template <int kWidth>
constexpr int kColumns = kWidth <= 64 ? 32 : 16;

template <typename T, int kWidth>
struct QueryShared {
  Tile<T, kWidth> keys[2], values[2];  // queries and dy pass through the second ones first
  Tile<T, kWidth> y;
};

// Of the queries; leaves `along` for the other kernel.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads, kWidth <= 64 ? 3 : 2) query_grad(AttentionProblem p, Operands<T> to) {
  constexpr int kPart = kColumns<kWidth>;
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<QueryShared<T, kWidth>*>(memory);
  const AttentionPlace at(p, kRows, p.causal);
  const int first = at.first + row_of_warp();  // query of the warp
  const float scale = p.scale * kLog2E;        // powers of two from here on
  auto load = [&](int first_key) {
    const int buffer = first_key / kTile % 2;
    shared.keys[buffer].load(p, to.qkv + p.key(at.n, at.h), p.qkv_stride(), first_key);
    shared.values[buffer].load(p, to.qkv + p.value(at.n, at.h), p.qkv_stride(), first_key);
  };
  shared.keys[1].load(p, to.qkv + p.query(at.n, at.h), p.qkv_stride(), at.first);
  shared.values[1].load(p, to.dy + p.output(at.n, at.h), p.features(), at.first);
  shared.y.load(p, to.y + p.output(at.n, at.h), p.features(), at.first);
  load(0);
  arrived();
  __syncthreads();
  Operand<kWidth> queries, dy;
  load_operand(shared.keys[1], queries);
  load_operand(shared.values[1], dy);
  float along[2], saved[2];
  {
    Operand<kWidth> y;
    load_operand(shared.y, y);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = 0;
#pragma unroll
      for (int k = 0; k < kWidth / 16; ++k) {
#pragma unroll
        for (int r = half; r < 4; r += 2) {
          const float2 a = unpack<T>(dy[k][r]), b = unpack<T>(y[k][r]);
          sum += a.x * b.x + a.y * b.y;
        }
      }
      const int i = first + row_of(2 * half);
      const int64_t place = p.saved(at.n, at.h) + i;
      along[half] = sum_of_row(sum) / p.dropout.kept_scale();
      saved[half] = i < p.length ? to.saved[place] * kLog2E : 0;
      if (i < p.length && lane() % 4 == 0) to.along[place] = along[half];
    }
  }

  Accumulator<kWidth> sums = {};
  const int end = p.end_of_keys(at.first + kRows - 1);
  for (int first_key = 0; first_key < end; first_key += kTile) {
    arrived();
    __syncthreads();  // all have this tile, and are done with the one before
    if (first_key + kTile < end) load(first_key + kTile);
    const Bits there = keys_there(p, at.n, first_key);
    if (first >= p.length || there.none()) continue;

    const bool masked = !there.full() || p.hides(first, first_key + kTile - 1);
    const int buffer = first_key / kTile % 2, end_of_tile = p.end_of_keys(first + 15) - first_key;
    Bits kept[2];
    if (to.kept.by_query) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        kept[half] = kept_of_row(p, at, to.kept.by_query, first + row_of(2 * half), first_key);
      }
    }
#pragma unroll
    for (int part = 0; part < kTile; part += kPart) {
      if (part >= end_of_tile) break;
      Accumulator<kPart> scores, dscores;
      multiply_turned<T, kWidth, kPart>(queries, shared.keys[buffer], part, kPart / 16, scores);
      multiply_turned<T, kWidth, kPart>(dy, shared.values[buffer], part, kPart / 16, dscores);
      if (to.kept.by_query) {
#pragma unroll
        for (int n = 0; n < kPart / 8; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) dscores[n][e] = kept[e / 2].at(part / 8 + n, e) ? dscores[n][e] : 0;
        }
      }
#pragma unroll
      for (int n = 0; n < kPart / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          dscores[n][e] = power_of_two(scores[n][e] * scale - saved[e / 2]) * (dscores[n][e] - along[e / 2]);
        }
      }
      if (masked) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int i = first + row_of(2 * half);
          const Bits seen = (p.causal ? there & Bits::up_to(i - first_key) : there).of_lane();
#pragma unroll
          for (int n = 0; n < kPart / 8; ++n) {
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; ++e) {
              dscores[n][e] = seen.at(part / 8 + n, e) ? dscores[n][e] : 0;
            }
          }
        }
      }
      Operand<kPart> operand;
      to_operand<T, kPart>(dscores, operand);
      multiply<T, kWidth, kPart>(operand, shared.keys[buffer], part, kPart / 16, sums);
    }
  }
  const float factor = p.scale * p.dropout.kept_scale();
  store_rows<T, kWidth>(p, first, sums, to.dqkv + p.query(at.n, at.h), p.qkv_stride(), [&](int) { return factor; });
}

template <typename T, int kWidth>
struct KeyShared {
  Tile<T, kWidth> queries[2], dy[2];  // keys and values pass through those that are not needed first
  float saved[2][kTile], along[2][kTile];
};

// Of the keys and values: the block's rows are keys, the tiles queries. A query behind the last has zeros for itself,
// dy and `along`, which add nothing; what a key that is not there gets is not stored.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads, 2) key_value_grad(AttentionProblem p, Operands<T> to) {
  constexpr int kPart = kColumns<kWidth>;
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<KeyShared<T, kWidth>*>(memory);
  const AttentionPlace at(p, kRows);
  const int first = at.first + row_of_warp();  // key of the warp
  const float scale = p.scale * kLog2E;
  auto load = [&](int first_query) {
    static_assert(kThreads == 2 * kTile);
    const int buffer = first_query / kTile % 2, i = static_cast<int>(threadIdx.x) % kTile;
    shared.queries[buffer].load(p, to.qkv + p.query(at.n, at.h), p.qkv_stride(), first_query);
    shared.dy[buffer].load(p, to.dy + p.output(at.n, at.h), p.features(), first_query);
    const bool is_saved = threadIdx.x < kTile, exists = first_query + i < p.length;
    const float* from = (is_saved ? to.saved : to.along) + p.saved(at.n, at.h);
    float* into = is_saved ? shared.saved[buffer] : shared.along[buffer];
    copy_async<4>(into + i, exists ? from + first_query + i : from, exists);
  };
  // Queries before the first key do not see any of them.
  const int begin = p.causal ? at.first : 0, other = (begin / kTile + 1) % 2;
  shared.queries[other].load(p, to.qkv + p.key(at.n, at.h), p.qkv_stride(), at.first);
  shared.dy[other].load(p, to.qkv + p.value(at.n, at.h), p.qkv_stride(), at.first);
  load(begin);
  arrived();
  __syncthreads();
  Operand<kWidth> keys, values;
  load_operand(shared.queries[other], keys);
  load_operand(shared.dy[other], values);
  const bool has_key[2] = {p.has_key(at.n, first + row_of(0)), p.has_key(at.n, first + row_of(2))};
  const bool has_any = __any_sync(~0u, has_key[0] || has_key[1]);

  Accumulator<kWidth> dkeys = {}, dvalues = {};
  for (int first_query = begin; first_query < p.length; first_query += kTile) {
    arrived();
    __syncthreads();  // all have this tile, and are done with the one before
    if (first_query + kTile < p.length) load(first_query + kTile);
    if (!has_any) continue;

    const int buffer = first_query / kTile % 2, end_of_tile = p.length - first_query;
    const int begin_of_tile = p.causal ? first - first_query : 0;
    Bits kept[2];
    if (to.kept.by_key) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        kept[half] = kept_of_row(p, at, to.kept.by_key, first + row_of(2 * half), first_query);
      }
    }
#pragma unroll
    for (int part = 0; part < kTile; part += kPart) {
      if (part >= end_of_tile) break;
      if (part + kPart <= begin_of_tile) continue;
      Accumulator<kPart> weights, dscores;
      multiply_turned<T, kWidth, kPart>(keys, shared.queries[buffer], part, kPart / 16, weights);
      multiply_turned<T, kWidth, kPart>(values, shared.dy[buffer], part, kPart / 16, dscores);
#pragma unroll
      for (int n = 0; n < kPart / 8; ++n) {
        const float2 saved = *reinterpret_cast<const float2*>(&shared.saved[buffer][part + column_of(n, 0)]);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          weights[n][e] = power_of_two(weights[n][e] * scale - (e % 2 == 0 ? saved.x : saved.y) * kLog2E);
        }
      }
      if (p.hides(first_query, first + 15)) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const Bits seen = Bits::from(first + row_of(2 * half) - first_query).of_lane();
#pragma unroll
          for (int n = 0; n < kPart / 8; ++n) {
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; ++e) {
              weights[n][e] = seen.at(part / 8 + n, e) ? weights[n][e] : 0;
            }
          }
        }
      }
      Operand<kPart> operand;
      if (to.kept.by_key) {
        Accumulator<kPart> kept_weights;
#pragma unroll
        for (int n = 0; n < kPart / 8; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const bool is_kept = kept[e / 2].at(part / 8 + n, e);
            dscores[n][e] = is_kept ? dscores[n][e] : 0;
            kept_weights[n][e] = is_kept ? weights[n][e] : 0;
          }
        }
        to_operand<T, kPart>(kept_weights, operand);
      } else {
        to_operand<T, kPart>(weights, operand);
      }
      multiply<T, kWidth, kPart>(operand, shared.dy[buffer], part, kPart / 16, dvalues);
#pragma unroll
      for (int n = 0; n < kPart / 8; ++n) {
        const float2 along = *reinterpret_cast<const float2*>(&shared.along[buffer][part + column_of(n, 0)]);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          dscores[n][e] = weights[n][e] * (dscores[n][e] - (e % 2 == 0 ? along.x : along.y));
        }
      }
      to_operand<T, kPart>(dscores, operand);
      multiply<T, kWidth, kPart>(operand, shared.queries[buffer], part, kPart / 16, dkeys);
    }
  }
  const float value_factor = p.dropout.kept_scale(), key_factor = p.scale * value_factor;
  store_rows<T, kWidth>(p, first, dkeys, to.dqkv + p.key(at.n, at.h), p.qkv_stride(),
                        [&](int half) { return has_key[half] ? key_factor : 0; });
  store_rows<T, kWidth>(p, first, dvalues, to.dqkv + p.value(at.n, at.h), p.qkv_stride(),
                        [&](int half) { return has_key[half] ? value_factor : 0; });
}

// Scratch: `along`, then what dropout keeps, by query and by key.
size_t along_bytes(const AttentionProblem& p) {
  return (sizeof(float) * static_cast<size_t>(p.rows) * p.heads * p.length + 255) / 256 * 256;
}
size_t kept_bytes(const AttentionProblem& p) { return p.dropout.on ? (KeptWeights::bytes(p) + 255) / 256 * 256 : 0; }

}  // namespace

size_t input_grad_scratch(const AttentionProblem& p) { return along_bytes(p) + 2 * kept_bytes(p); }

template <typename T>
Task input_grad_task(const Device& device, const AttentionProblem& p, const T* dy, const T* qkv, const T* y,
                     const float* saved, T* dqkv, void* scratch) {
  auto* bytes = static_cast<std::byte*>(scratch);
  Operands<T> to{dy, qkv, y, saved, reinterpret_cast<float*>(bytes), {}, dqkv};
  if (p.dropout.on) {
    bytes += along_bytes(p);
    to.kept = {reinterpret_cast<uint32_t*>(bytes), reinterpret_cast<uint32_t*>(bytes + kept_bytes(p))};
  }
  return with_width(p.width, [&]<int kWidth>() -> Task {
    constexpr size_t kQueryBytes = sizeof(QueryShared<T, kWidth>), kKeyBytes = sizeof(KeyShared<T, kWidth>);
    allow_shared(query_grad<T, kWidth>, kQueryBytes);
    allow_shared(key_value_grad<T, kWidth>, kKeyBytes);
    const unsigned blocks = attention_blocks(p, kRows);
    return [=](const StepContext&) {
      if (p.dropout.on) to.kept.draw(device, p);
      query_grad<T, kWidth><<<blocks, kThreads, kQueryBytes, device.stream>>>(p, to);
      MILLRACE_LAUNCHED("attention query_grad");
      key_value_grad<T, kWidth><<<blocks, kThreads, kKeyBytes, device.stream>>>(p, to);
      MILLRACE_LAUNCHED("attention key_value_grad");
    };
  });
}
template Task input_grad_task(const Device&, const AttentionProblem&, const __half*, const __half*, const __half*,
                              const float*, __half*, void*);
template Task input_grad_task(const Device&, const AttentionProblem&, const __nv_bfloat16*, const __nv_bfloat16*,
                              const __nv_bfloat16*, const float*, __nv_bfloat16*, void*);

}  // namespace millrace::backend::cuda::mma_attention
