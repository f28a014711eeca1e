// Strassen's product of matrices cut into quarters, in Winograd's form: 7 products of quarters instead of 8, and
// 15 sums. Sums of operands are made by the caller,
//   s1 = a21 + a22   s2 = s1 - a11   s3 = a11 - a21   s4 = a12 - s2
//   t1 = b12 - b11   t2 = b22 - t1   t3 = b22 - b12   t4 = b21 - t2
// and those of results are made on the way: every quarter of C is written once.
#pragma once

#include "millrace/backend/cpu/matrix_tile.h"

namespace millrace::backend::cpu::strassen {

struct Sums {
  Lanes s1, s2, s3, s4;
};
inline Sums sums_of_a(Lanes a11, Lanes a12, Lanes a21, Lanes a22) {
  const Lanes s1 = a21 + a22, s2 = s1 - a11;
  return {s1, s2, a11 - a21, a12 - s2};
}
inline Sums sums_of_b(Lanes b11, Lanes b12, Lanes b21, Lanes b22) {
  const Lanes t1 = b12 - b11, t2 = b22 - t1;
  return {t1, t2, b22 - b12, b21 - t2};
}

template <typename A>
struct LeftOperands {
  A a11, a12, a22, s1, s2, s3, s4;
};
template <typename B>
struct RightOperands {
  B b11, b21, b22, t1, t2, t3, t4;
};
struct Quarters {
  matrix_conv::Place c11, c12, c21, c22;
};

// Columns of results on their way lie an odd number of vectors apart: at a power of two they would fall into one set
// of the cache.
constexpr int64_t work_stride(int64_t rows) { return rows | 1; }
constexpr int64_t work_vectors(int64_t rows) { return 3 * kProductVectors * work_stride(rows); }

// One panel of kProductVectors columns of each quarter. multiply(a, b, result) makes one product of quarters.
template <typename A, typename B, typename Multiply>
void multiply_quarters(const LeftOperands<A>& a, const RightOperands<B>& b, const Quarters& c,
                       matrix_conv::Storing storing, int64_t rows, Lanes* work, const Multiply& multiply) {
  using matrix_conv::Place, matrix_conv::Storing;
  const int64_t stride = work_stride(rows);
  const Place p{work, stride}, q{p.column(kProductVectors), stride}, r{q.column(kProductVectors), stride};
  multiply(a.a11, b.b11, {{}, p});
  multiply(a.a12, b.b21, {p, c.c11, storing});
  multiply(a.s2, b.t2, {p, p});
  multiply(a.s3, b.t3, {p, q});
  multiply(a.a22, b.t4, {q, c.c21, storing});
  multiply(a.s1, b.t1, {{}, r});
  for (int j = 0; j < kProductVectors; ++j) {
    Lanes *in_p = p.column(j), *to = c.c22.column(j);
    const Lanes *in_q = q.column(j), *in_r = r.column(j);
    for (int64_t i = 0; i < rows; ++i) {
      const Lanes product = in_r[i], sum = in_q[i] + product;
      in_p[i] += product;
      if (storing == Storing::PastCaches) {
        store_past_caches(to[i], sum);
      } else {
        to[i] = storing == Storing::Adding ? to[i] + sum : sum;
      }
    }
  }
  multiply(a.s4, b.b22, {p, c.c12, storing});
}

}  // namespace millrace::backend::cpu::strassen
