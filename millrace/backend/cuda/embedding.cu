// The table's row that each token names. Tokens below zero are none; one that the table does not have makes its row
// NaN, which stops the run.
//
// The gradient of a table has few rows that are not zero, one of which may be the sum of many: places are first sorted
// by what they name, then summed in chunks of equal size, then runs that go over several chunks. The order of all
// sums follows from the tokens alone.
#include <climits>

#include "millrace/backend/cuda/kernels.h"
#include "millrace/backend/cuda/rows.cuh"

namespace millrace::backend::cuda {
namespace {

using graph::Pass;

struct Geometry {
  int64_t places, planes, plane, length, width;
  int32_t entries;

  __device__ int32_t token(const int32_t* tokens, int64_t place) const {
    return tokens[(place / length * planes + plane) * length + place % length];
  }
  // What is none comes after all others.
  __device__ int32_t entry(const int32_t* tokens, int64_t place) const {
    const int32_t named = token(tokens, place);
    return named >= 0 && named < entries ? named : entries;
  }
};

template <typename T>
struct EntryOfToken {
  Geometry g;
  const T* table;
  const int32_t* tokens;
  __device__ RowSource<T> operator()(int64_t place) const {
    const int32_t token = g.token(tokens, place);
    if (token >= g.entries) return {nullptr, NAN};
    if (token < 0) return {};
    return {table + int64_t{token} * g.width};
  }
};

constexpr int kTile = 256;  // places that a block ranks, and that it looks at together
constexpr int kTiles = 4;   // of them a block looks at

// The places as they are sorted: by entry, those of one entry in their order.
struct Sorted {
  int32_t *ranks, *entries, *places;

  static size_t bytes(int64_t places) { return 3 * static_cast<size_t>(padded(places)) * sizeof(int32_t); }
  Sorted(void* scratch, int64_t count)
      : ranks(static_cast<int32_t*>(scratch)), entries(ranks + padded(count)), places(entries + padded(count)) {}
};

// A place's rank is the number of places that come before it. All are compared with all: for the few thousands of a
// micro-batch that is less work than the passes of a sort over the table's entries.
__global__ void rank_places(Geometry g, const int32_t* tokens, int32_t* ranks) {
  __shared__ int32_t others[kTile];
  const int own_tile = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x);
  const int64_t place = int64_t{own_tile} * kTile + lane;
  const int32_t entry = place < g.places ? g.entry(tokens, place) : INT_MAX;
  int32_t before = 0;
  for (int tile = static_cast<int>(blockIdx.y) * kTiles; tile < (static_cast<int>(blockIdx.y) + 1) * kTiles; ++tile) {
    const int64_t other = int64_t{tile} * kTile + lane;
    __syncthreads();
    others[lane] = other < g.places ? g.entry(tokens, other) : INT_MAX;
    __syncthreads();
    if (place >= g.places) continue;
    if (tile == own_tile) {
      for (int i = 0; i < kTile; ++i) before += others[i] < entry + (i < lane);
    } else {
      const int32_t limit = entry + (tile < own_tile);
#pragma unroll 16
      for (int i = 0; i < kTile; ++i) before += others[i] < limit;
    }
  }
  if (place < g.places) atomicAdd(ranks + place, before);
}

__global__ void sort_places(Geometry g, const int32_t* tokens, Sorted sorted) {
  const int64_t place = int64_t{blockIdx.x} * kTile + threadIdx.x;
  if (place >= g.places) return;
  const int32_t rank = sorted.ranks[place];
  sorted.entries[rank] = g.entry(tokens, place);
  sorted.places[rank] = static_cast<int32_t>(place);
}

constexpr int kChunk = 32;  // sorted places that one thread sums
constexpr int kAhead = 8;   // of them read at once
constexpr int kThreads = 64;

// Chunk `index` of the sorted places. A run, the places of one entry, may go over several chunks.
struct Chunk {
  int64_t first, last;

  __device__ Chunk(const Geometry& g, int64_t index)
      : first(index * kChunk), last(first + kChunk < g.places ? first + kChunk : g.places) {}
  // Whether the run of an entry that it has begins in it.
  __device__ bool begins(const Sorted& sorted, int32_t entry) const {
    return first == 0 || sorted.entries[first - 1] != entry;
  }
};

// partial: for each chunk, its part of the run that began before it, and of the one that goes on after it.
__device__ inline float* part_of_run(const Geometry& g, float* partial, int64_t chunk, bool begins) {
  return partial + (chunk * 2 + begins) * g.width;
}

template <int kSize, typename T, typename U>
__global__ void sum_chunks(Geometry g, const T* dy, Sorted sorted, float* partial, U* dtable) {
  const Chunk chunk(g, blockIdx.x);
  const int64_t column = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kSize;
  if (column >= g.width) return;
  float sum[kSize] = {};
  for (int64_t group = chunk.first; group < chunk.last; group += kAhead) {
    Pack<T, kSize> ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (group + i < chunk.last) ahead[i] = load_pack<kSize>(dy + sorted.places[group + i] * g.width + column);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t at = group + i;
      const int32_t entry = at < chunk.last ? sorted.entries[at] : g.entries;
      if (entry == g.entries) return;
#pragma unroll
      for (int k = 0; k < kSize; ++k) sum[k] += to_float(ahead[i].at[k]);
      const bool ends = at + 1 == g.places || sorted.entries[at + 1] != entry;
      if (!ends && at + 1 < chunk.last) continue;
      const bool begins = chunk.begins(sorted, entry);
      if (begins && ends) {
        store_gradient<T>(dtable + int64_t{entry} * g.width + column, sum);
      } else {
        float* part = part_of_run(g, partial, blockIdx.x, begins);
#pragma unroll
        for (int k = 0; k < kSize; ++k) part[column + k] = sum[k];
      }
#pragma unroll
      for (int k = 0; k < kSize; ++k) sum[k] = 0;
    }
  }
}

// The block of the chunk in which a long run begins adds its parts.
template <typename T, typename U>
__global__ void sum_long_runs(Geometry g, Sorted sorted, float* partial, U* dtable) {
  const Chunk chunk(g, blockIdx.x);
  if (chunk.last == g.places) return;
  const int32_t entry = sorted.entries[chunk.last];
  if (entry == g.entries || sorted.entries[chunk.last - 1] != entry || !chunk.begins(sorted, entry)) return;
  // The chunks after this one that begin with the entry: up to `end`.
  int64_t end = blockIdx.x + 1, after = (g.places + kChunk - 1) / kChunk;
  while (end < after) {
    const int64_t middle = (end + after) / 2;
    if (sorted.entries[middle * kChunk] == entry) {
      end = middle + 1;
    } else {
      after = middle;
    }
  }
  const int64_t column = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (column >= g.width) return;
  float sum[1] = {part_of_run(g, partial, blockIdx.x, true)[column]};
#pragma unroll 8
  for (int64_t next = blockIdx.x + 1; next < end; ++next) sum[0] += part_of_run(g, partial, next, false)[column];
  store_gradient<T>(dtable + int64_t{entry} * g.width + column, sum);
}

unsigned blocks_of(int64_t work, int64_t block) { return static_cast<unsigned>((work + block - 1) / block); }

size_t weight_grad_scratch(const Geometry& g) {
  const int64_t chunks = (g.places + kChunk - 1) / kChunk;
  return Sorted::bytes(g.places) + static_cast<size_t>(chunks * 2 * g.width) * sizeof(float);
}

template <typename T, typename U>
Task weight_grad_task(const Device& device, const Geometry& g, const Bindings& at) {
  const T* dy = at.read<T>(0);
  const auto* tokens = at.read<int32_t>(1);
  U* dtable = at.write<U>(0);
  const Sorted sorted(at.scratch, g.places);
  auto* partial = reinterpret_cast<float*>(static_cast<std::byte*>(at.scratch) + Sorted::bytes(g.places));
  const size_t table_bytes = static_cast<size_t>(g.entries) * static_cast<size_t>(g.width) * sizeof(U);
  const unsigned tiles = blocks_of(g.places, kTile), chunks = blocks_of(g.places, kChunk);
  return with_pack<T>(g.width, [&]<int kSize>() -> Task {
    const dim3 ranking(tiles, blocks_of(tiles, kTiles));
    const dim3 summing(chunks, blocks_of(g.width, int64_t{kThreads} * kSize)),
        adding(chunks, blocks_of(g.width, kThreads));
    return [=](const StepContext&) {
      MILLRACE_CUDA(cudaMemsetAsync(sorted.ranks, 0, static_cast<size_t>(g.places) * sizeof(int32_t), device.stream));
      rank_places<<<ranking, kTile, 0, device.stream>>>(g, tokens, sorted.ranks);
      MILLRACE_LAUNCHED("rank_places");
      sort_places<<<tiles, kTile, 0, device.stream>>>(g, tokens, sorted);
      MILLRACE_LAUNCHED("sort_places");
      MILLRACE_CUDA(cudaMemsetAsync(dtable, 0, table_bytes, device.stream));
      sum_chunks<kSize><<<summing, kThreads, 0, device.stream>>>(g, dy, sorted, partial, dtable);
      MILLRACE_LAUNCHED("sum_chunks");
      sum_long_runs<T><<<adding, kThreads, 0, device.stream>>>(g, sorted, partial, dtable);
      MILLRACE_LAUNCHED("sum_long_runs");
    };
  });
}

}  // namespace

Kernel prepare_embedding(const Device& device, const NodeView& view) {
  const bool forward = view.node.pass == Pass::Forward || view.node.pass == Pass::Evaluate;
  if (!forward && view.node.pass != Pass::WeightGrad) refuse_pass(view);
  const Shape &table = forward ? view.read(0) : view.write(0), &tokens = view.read(1);
  const Geometry g{.places = tokens[0] * tokens.width(),
                   .planes = tokens.rank() == 3 ? tokens[1] : 1,
                   .plane = view.attrs<graph::EmbeddingAttrs>().plane,
                   .length = tokens.width(),
                   .width = table[1],
                   .entries = static_cast<int32_t>(table[0])};
  const DType dtype = dtype_of_read(view, 0), out_dtype = dtype_of_write(view, 0);
  Kernel kernel;
  kernel.algorithm = forward ? "rows" : "sorted places";
  kernel.scratch_bytes = forward ? 0 : weight_grad_scratch(g);
  kernel.bind = [=](const Bindings& at) {
    return with_type(dtype, [&]<typename T>() -> Task {
      if (forward) {
        const EntryOfToken<T> source{g, at.read<T>(0), at.read<int32_t>(1)};
        return copy_rows_task(device, {g.places, g.width, g.width}, source, at.write<T>(0));
      }
      return with_type(out_dtype, [&]<typename U>() { return weight_grad_task<T, U>(device, g, at); });
    });
  };
  return kernel;
}

}  // namespace millrace::backend::cuda
