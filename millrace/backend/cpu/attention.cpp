// Attention over blocks of queries. A thread packs the keys and values of one head, then goes through blocks of its
// queries: a block's scores over all keys fit the second cache, so that the softmax needs no second look, and all
// products are those of small_product.h. Backward has all queries of a head in one thread, which adds to the gradients
// of keys and values in the order of the blocks: no result depends on the number of threads.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "millrace/backend/cpu/attention_rows.h"
#include "millrace/backend/cpu/blocked.h"
#include "millrace/backend/cpu/kernels.h"
#include "millrace/backend/cpu/small_product.h"

namespace millrace::backend::cpu {
namespace {

using graph::Pass;

constexpr int64_t kQueries = 32;  // of a block; an even number

constexpr int64_t vectors_for(int64_t floats) { return (floats + kBlock - 1) / kBlock; }

struct Plan {
  int64_t rows, length, heads, width;  // width: features of one head
  int64_t planes;                      // of the tokens; the first counts
  bool causal;
  float scale;
  std::optional<DropoutMask> mask;
  uint64_t purpose;  // of the mask's numbers
  int threads;

  int64_t features() const { return heads * width; }
  int64_t blocks() const { return (length + kQueries - 1) / kQueries; }
  int64_t width_vectors() const { return vectors_for(width); }
  // From one row of keys or of features to the next, in vectors. Odd: at a distance of a power of two the rows would
  // fall into few cache sets.
  int64_t key_stride() const { return vectors_for(length) | 1; }
  int64_t width_stride() const { return width_vectors() | 1; }

  // Keys that query i, and that a block of queries, may see.
  int64_t keys_of(int64_t i) const { return causal ? i + 1 : length; }
  int64_t keys_of_block(int64_t first) const { return keys_of(std::min(first + kQueries, length) - 1); }

  int64_t query(int64_t n, int64_t i, int64_t h) const { return (n * length + i) * 3 * features() + h * width; }
  int64_t output(int64_t n, int64_t i, int64_t h) const { return (n * length + i) * features() + h * width; }
};

// What one thread works in.
struct Workspace {
  Lanes *keys_across, *values_across;  // [feature][key]
  Lanes *keys, *values;                // [key][feature]
  Lanes *dkeys, *dvalues;
  Lanes *queries, *dy, *out;  // of a block: [query][feature]
  Lanes *scores, *dscores;    // [query][key]
  Lanes *hidden, *factors;    // of each key: what its token, what dropout says
  uint32_t* words;

  Workspace(const Plan& plan, bool backward, Lanes* base) : base_(base) {
    const int64_t across = plan.width * plan.key_stride();
    // As many rows as there are lanes: the gradients come in pairs of rows.
    const int64_t along = vectors_for(plan.length) * kBlock * plan.width_stride();
    const int64_t block = kQueries * plan.width_stride(), square = kQueries * plan.key_stride();
    keys_across = take(across);
    values_across = take(backward ? across : 0);
    keys = take(backward ? along : 0);
    values = take(backward ? 0 : along);
    dkeys = take(backward ? along : 0);
    dvalues = take(backward ? along : 0);
    queries = take(block);
    dy = take(backward ? block : 0);
    out = take(block);
    scores = take(square);
    dscores = take(backward ? square : 0);
    hidden = take(plan.key_stride());
    factors = take(plan.key_stride());
    words = reinterpret_cast<uint32_t*>(take(vectors_for(DropoutFactors::words_for(plan.key_stride()))));
  }

  int64_t vectors = 0;

 private:
  // Without a base the vectors are only counted.
  Lanes* take(int64_t count) {
    Lanes* taken = base_ ? base_ + vectors : nullptr;
    vectors += count;
    return taken;
  }
  Lanes* base_;
};

int64_t workspace_vectors(const Plan& plan, bool backward) { return Workspace(plan, backward, nullptr).vectors; }

// `rows` rows of a head's features, times `factor`; rows up to `all_rows` and features up to a vector are zero.
void pack(const Plan& plan, const float* from, int64_t row_floats, int64_t rows, int64_t all_rows, float factor,
          Lanes* to) {
  const int64_t floats = plan.width_vectors() * kBlock;
  for (int64_t i = 0; i < all_rows; ++i) {
    auto* row = reinterpret_cast<float*>(to + i * plan.width_stride());
    int64_t d = 0;
    if (i < rows) {
      for (; d < plan.width; ++d) row[d] = from[i * row_floats + d] * factor;
    }
    std::fill(row + d, row + floats, 0.0f);
  }
}

// The same turned: a row for each feature.
void pack_across(const Plan& plan, const float* from, int64_t row_floats, Lanes* to) {
  const int64_t stride = plan.key_stride();
  for (int64_t v = 0; v < vectors_for(plan.length); ++v) {
    const int lanes = channels_in(v, plan.length);
    const float* keys = from + v * kBlock * row_floats;
    for (int64_t d = 0; d < plan.width; ++d) {
      Lanes column{};
      if (lanes == kBlock) {
        for (int lane = 0; lane < kBlock; ++lane) column[lane] = keys[lane * row_floats + d];
      } else {
        for (int lane = 0; lane < lanes; ++lane) column[lane] = keys[lane * row_floats + d];
      }
      to[d * stride + v] = column;
    }
  }
}

void unpack(const Plan& plan, const Lanes* from, int64_t rows, float factor, float* to, int64_t row_floats) {
  for (int64_t i = 0; i < rows; ++i) {
    const auto* row = reinterpret_cast<const float*>(from + i * plan.width_stride());
    for (int64_t d = 0; d < plan.width; ++d) to[i * row_floats + d] = row[d] * factor;
  }
}

// What to add to a sample's scores: minus infinity where a key's token is none. Null where there are no tokens.
const Lanes* hide_tokens(const Plan& plan, const int32_t* tokens, int64_t n, Lanes* hidden) {
  if (!tokens) return nullptr;
  const int32_t* row = tokens + n * plan.planes * plan.length;
  auto* to = reinterpret_cast<float*>(hidden);
  for (int64_t j = 0; j < plan.length; ++j) to[j] = row[j] < 0 ? -INFINITY : 0.0f;
  std::fill(to + plan.length, to + vectors_for(plan.length) * kBlock, 0.0f);
  return hidden;
}

std::optional<DropoutFactors> dropout_of(const Plan& plan, const StepContext& context, int64_t n,
                                         const Workspace& work) {
  if (!plan.mask) return std::nullopt;
  return DropoutFactors(*plan.mask, plan.purpose, context, n, work.words);
}

// C[query][key] = a block's rows of features times `across`.
void multiply_across(const Plan& plan, int64_t rows, int64_t key_vectors, const Lanes* block, const Lanes* across,
                     Lanes* c) {
  small_product<false>({even_rows(rows), key_vectors, plan.width, plan.width_stride() * kBlock, 1, plan.key_stride(),
                        kProductVectors, plan.key_stride()},
                       reinterpret_cast<const float*>(block), across, c);
}

// C[query][feature] = a block's rows over keys times rows of keys.
void multiply_along(const Plan& plan, int64_t rows, int64_t keys, const Lanes* square, const Lanes* along, Lanes* c) {
  small_product<false>({even_rows(rows), plan.width_vectors(), keys, plan.key_stride() * kBlock, 1, plan.width_stride(),
                        kProductVectors, plan.width_stride()},
                       reinterpret_cast<const float*>(square), along, c);
}

// C[key][feature] += a block's columns of keys times the block's rows.
void add_turned(const Plan& plan, int64_t rows, int64_t key_vectors, const Lanes* square, const Lanes* block,
                Lanes* c) {
  small_product<true>({key_vectors * kBlock, plan.width_vectors(), rows, 1, plan.key_stride() * kBlock,
                       plan.width_stride(), kProductVectors, plan.width_stride()},
                      reinterpret_cast<const float*>(square), block, c);
}

// The output of queries [first, first + kQueries) of head h.
void forward_block(const Plan& plan, const Workspace& work, const Lanes* hidden,
                   const std::optional<DropoutFactors>& dropout, int64_t n, int64_t h, int64_t first, const float* qkv,
                   float* y, float* saved) {
  const int64_t rows = std::min(kQueries, plan.length - first);
  const int64_t keys = plan.keys_of_block(first), vectors = vectors_for(keys);
  pack(plan, qkv + plan.query(n, first, h), 3 * plan.features(), rows, even_rows(rows), plan.scale, work.queries);
  multiply_across(plan, rows, vectors, work.queries, work.keys_across, work.scores);
  float inverse[kQueries];
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t i = first + r;
    Lanes* row = work.scores + r * plan.key_stride();
    hide_keys(row, hidden, plan.keys_of(i), vectors);
    const RowSum sum = exponentials(row, vectors);
    const bool sees_none = sum.largest == -INFINITY;
    inverse[r] = sees_none ? 0.0f : 1.0f / sum.total;
    if (saved) saved[(n * plan.heads + h) * plan.length + i] = sees_none ? 0.0f : sum.largest + std::log(sum.total);
    if (dropout) {
      dropout->draw((h * plan.length + i) * plan.length, vectors, work.factors);
      for (int64_t v = 0; v < vectors; ++v) row[v] *= work.factors[v];
    }
  }
  multiply_along(plan, rows, keys, work.scores, work.values, work.out);
  for (int64_t r = 0; r < rows; ++r) {
    unpack(plan, work.out + r * plan.width_stride(), 1, inverse[r], y + plan.output(n, first + r, h), 0);
  }
}

Kernel prepare_forward(const Plan& plan, bool masked, bool saves) {
  const int64_t own = workspace_vectors(plan, false);
  Kernel kernel{"blocks of queries", static_cast<size_t>(plan.threads * own) * sizeof(Lanes), {}};
  kernel.bind = [=](const Bindings& bind) -> Task {
    const auto* qkv = bind.read<float>(0);
    const auto* tokens = masked ? bind.read<int32_t>(1) : nullptr;
    auto* y = bind.write<float>(0);
    auto* saved = saves ? bind.write<float>(1) : nullptr;
    auto* scratch = static_cast<Lanes*>(bind.scratch);
    return [=](const StepContext& context) {
#pragma omp parallel num_threads(plan.threads)
      {
        const Workspace work(plan, false, scratch + omp_get_thread_num() * own);
        int64_t packed = -1;  // a thread's blocks follow each other: it packs a head once
#pragma omp for schedule(static)
        for (int64_t task = 0; task < plan.rows * plan.heads * plan.blocks(); ++task) {
          const int64_t head = task / plan.blocks(), n = head / plan.heads, h = head % plan.heads;
          if (head != packed) {
            const float* keys = qkv + plan.query(n, 0, h) + plan.features();
            pack_across(plan, keys, 3 * plan.features(), work.keys_across);
            pack(plan, keys + plan.features(), 3 * plan.features(), plan.length, plan.length, 1, work.values);
            hide_tokens(plan, tokens, n, work.hidden);
            packed = head;
          }
          forward_block(plan, work, tokens ? work.hidden : nullptr, dropout_of(plan, context, n, work), n, h,
                        task % plan.blocks() * kQueries, qkv, y, saved);
        }
      }
    };
  };
  return kernel;
}

struct Gradient {
  const float *dy, *qkv, *y, *saved;
  const int32_t* tokens;
  float* dqkv;
};

// From scores and the gradients of the kept weights, row by row: what values are summed with, and the gradient of the
// scores. With weight p, dropout's factor k and dp = dy v, the sum over keys of k p dp is dy y.
void differentiate_row(const Workspace& work, bool dropped, int64_t vectors, float saved, float along, Lanes* row,
                       Lanes* drow) {
  for (int64_t v = 0; v < vectors; ++v) {
    const Lanes weight = exponential(row[v] - saved);
    const Lanes factor = dropped ? work.factors[v] : splat(1);
    row[v] = weight * factor;
    drow[v] = weight * (drow[v] * factor - along);
  }
}

void input_grad_block(const Plan& plan, const Workspace& work, const Lanes* hidden,
                      const std::optional<DropoutFactors>& dropout, int64_t n, int64_t h, int64_t first,
                      const Gradient& at) {
  const int64_t rows = std::min(kQueries, plan.length - first);
  const int64_t keys = plan.keys_of_block(first), vectors = vectors_for(keys);
  const int64_t query = plan.query(n, first, h), out = plan.output(n, first, h);
  pack(plan, at.qkv + query, 3 * plan.features(), rows, even_rows(rows), plan.scale, work.queries);
  pack(plan, at.dy + out, plan.features(), rows, even_rows(rows), 1, work.dy);
  multiply_across(plan, rows, vectors, work.queries, work.keys_across, work.scores);
  multiply_across(plan, rows, vectors, work.dy, work.values_across, work.dscores);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t i = first + r, token = out + r * plan.features();
    Lanes *row = work.scores + r * plan.key_stride(), *drow = work.dscores + r * plan.key_stride();
    hide_keys(row, hidden, plan.keys_of(i), vectors);
    float along = 0;
    for (int64_t d = 0; d < plan.width; ++d) along += at.dy[token + d] * at.y[token + d];
    if (dropout) dropout->draw((h * plan.length + i) * plan.length, vectors, work.factors);
    const float saved = at.saved[(n * plan.heads + h) * plan.length + i];
    differentiate_row(work, dropout.has_value(), vectors, saved, along, row, drow);
  }
  add_turned(plan, rows, vectors, work.scores, work.dy, work.dvalues);
  add_turned(plan, rows, vectors, work.dscores, work.queries, work.dkeys);  // the queries carry the scale already
  multiply_along(plan, rows, keys, work.dscores, work.keys, work.out);
  unpack(plan, work.out, rows, plan.scale, at.dqkv + query, 3 * plan.features());
}

void input_grad_head(const Plan& plan, const Workspace& work, const StepContext& context, int64_t n, int64_t h,
                     const Gradient& at) {
  const int64_t row_floats = 3 * plan.features(), features = plan.features();
  const float* keys = at.qkv + plan.query(n, 0, h) + features;
  pack_across(plan, keys, row_floats, work.keys_across);
  pack_across(plan, keys + features, row_floats, work.values_across);
  pack(plan, keys, row_floats, plan.length, plan.length, 1, work.keys);
  const int64_t gradients = vectors_for(plan.length) * kBlock * plan.width_stride();
  std::fill(work.dkeys, work.dkeys + gradients, Lanes{});
  std::fill(work.dvalues, work.dvalues + gradients, Lanes{});
  const Lanes* hidden = hide_tokens(plan, at.tokens, n, work.hidden);
  const auto dropout = dropout_of(plan, context, n, work);
  for (int64_t first = 0; first < plan.length; first += kQueries) {
    input_grad_block(plan, work, hidden, dropout, n, h, first, at);
  }
  float* dkeys = at.dqkv + plan.query(n, 0, h) + features;
  unpack(plan, work.dkeys, plan.length, 1, dkeys, row_floats);
  unpack(plan, work.dvalues, plan.length, 1, dkeys + features, row_floats);
}

Kernel prepare_input_grad(const Plan& plan, bool masked) {
  const int64_t own = workspace_vectors(plan, true);
  Kernel kernel{"blocks of queries", static_cast<size_t>(plan.threads * own) * sizeof(Lanes), {}};
  kernel.bind = [=](const Bindings& bind) -> Task {
    const Gradient at{bind.read<float>(0),
                      bind.read<float>(1),
                      bind.read<float>(2),
                      bind.read<float>(3),
                      masked ? bind.read<int32_t>(4) : nullptr,
                      bind.write<float>(0)};
    auto* scratch = static_cast<Lanes*>(bind.scratch);
    return [=](const StepContext& context) {
#pragma omp parallel num_threads(plan.threads)
      {
        const Workspace work(plan, true, scratch + omp_get_thread_num() * own);
#pragma omp for schedule(static)
        for (int64_t head = 0; head < plan.rows * plan.heads; ++head) {
          input_grad_head(plan, work, context, head / plan.heads, head % plan.heads, at);
        }
      }
    };
  };
  return kernel;
}

}  // namespace

Kernel prepare_attention(const NodeView& view) {
  const auto& attrs = view.attrs<graph::AttentionAttrs>();
  const bool forward = view.node.pass != Pass::InputGrad;
  const Shape& qkv = view.read(forward ? 0 : 1);
  const int tokens = forward ? 1 : 4;
  const bool masked = view.num_reads() > tokens;
  Plan plan{qkv[0],       qkv[1], attrs.heads, qkv[2] / (3 * attrs.heads), 1,
            attrs.causal, 1,      {},          hash_name(view.node.name),  omp_get_max_threads()};
  plan.scale = 1 / std::sqrt(static_cast<float>(plan.width));
  if (masked && view.read(tokens).rank() == 3) plan.planes = view.read(tokens)[1];
  if (attrs.dropout > 0 && view.node.pass != Pass::Evaluate) plan.mask.emplace(view.node.name, attrs.dropout);
  return forward ? prepare_forward(plan, masked, view.num_writes() > 1) : prepare_input_grad(plan, masked);
}

}  // namespace millrace::backend::cpu
