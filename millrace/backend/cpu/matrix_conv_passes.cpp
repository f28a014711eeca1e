// Convolution as a product, forward, and back with turned filters: rows are pixels, columns output channels.
#include <omp.h>

#include "millrace/backend/cpu/matrix_conv.h"
#include "millrace/backend/cpu/matrix_tile.h"
#include "millrace/backend/cpu/strassen.h"

namespace millrace::backend::cpu::matrix_conv {
namespace {

// a(row, k) is lane k % kBlock of data[k / kBlock * block_stride + row].
struct Pixels {
  const Lanes* data;
  int64_t block_stride;
};
// B[k][column] = data[column * column_stride + k].
struct Filters {
  const Lanes* data;
  int64_t column_stride;
};

template <int kColumns>
void multiply(int64_t rows, int64_t blocks, Pixels a, Filters b, const Result& result) {
  in_tiles(rows, [&]<int kRows>(int64_t row) {
    const Result at = result.from_row(row);
    Sums<kRows, kColumns> sums(at);
    const Lanes* pixels = a.data + row;
    const Lanes* filters = b.data;
    for (int64_t block = 0; block < blocks; ++block, pixels += a.block_stride) {
      // The next channels of these pixels are a plane away, where no hardware looks ahead.
#pragma GCC unroll 6
      for (int i = 0; i < kRows; ++i) __builtin_prefetch(pixels + a.block_stride + i);
      filters = sums.template add_products<kBlock, 1>(reinterpret_cast<const float*>(pixels), filters, b.column_stride,
                                                      kBlock);
    }
    sums.store(at);
  });
}

// Forward from x to y, or back from dy to dx with turned filters. Rows are the pixels of y on both sides.
struct Convolution {
  Taps in, out;
  bool turned;
  int threads;

  int64_t pixels() const { return in.y.pixels(); }
  int64_t batch() const { return in.y.batch; }
  int64_t filter_vectors() const { return in.blocks() * kBlock * out.blocks(); }
};

Storing storing_of(const Convolution& conv, bool scatters) {
  return !scatters && exceeds_caches(conv.out.x) ? Storing::PastCaches : Storing::Plain;
}

// Filters with channels exchanged, block by block.
void turn_filters(const Convolution& conv, const Lanes* w, Lanes* to) {
  const int64_t in_blocks = conv.in.blocks(), out_blocks = conv.out.blocks();
#pragma omp for schedule(static)
  for (int64_t o = 0; o < out_blocks; ++o) {
    for (int64_t i = 0; i < in_blocks; ++i) {
      const auto* from = reinterpret_cast<const float*>(w + (i * out_blocks + o) * kBlock);
      auto* turned = reinterpret_cast<float*>(to + (o * in_blocks + i) * kBlock);
      for (int row = 0; row < kBlock; ++row) {
        for (int column = 0; column < kBlock; ++column) turned[row * kBlock + column] = from[column * kBlock + row];
      }
    }
  }
}

// Within a parallel region: calls run(unit) for all units. Results that are added to what is there meet in an image,
// which then is one thread's, and begins with zeros.
template <typename Run>
void for_units(const Convolution& conv, const Units& units, bool adds, Lanes* out, const Run& run) {
  const int64_t together = adds ? units.per_image : 1;
#pragma omp for schedule(dynamic)
  for (int64_t group = 0; group < units.count / together; ++group) {
    if (adds) {
      const Unit unit = units.at(group * together);
      const int64_t first = conv.out.x.plane(unit.n, 0);
      std::fill(out + first, out + conv.out.x.plane(unit.n + unit.images, 0), Lanes{});
    }
    for (int64_t i = 0; i < together; ++i) run(units.at(group * together + i));
    finish_past_caches();
  }
}

void multiply_panel(int64_t columns, int64_t rows, int64_t blocks, Pixels a, Filters b, const Result& result) {
  switch (columns) {
    case 1: multiply<1>(rows, blocks, a, b, result); break;
    case 2: multiply<2>(rows, blocks, a, b, result); break;
    case 3: multiply<3>(rows, blocks, a, b, result); break;
    default: multiply<kProductVectors>(rows, blocks, a, b, result);
  }
}

Kernel plain(const Convolution& conv) {
  const int64_t in_blocks = conv.in.blocks(), out_blocks = conv.out.blocks();
  const Units units(conv.batch(), conv.pixels(), kMostPixels, conv.threads);
  const bool gathers = !conv.in.plain(), scatters = !conv.out.plain();
  const Storing storing = storing_of(conv, scatters);
  const int64_t turned_vectors = conv.turned ? conv.filter_vectors() : 0;
  const int64_t gathered_vectors = gathers ? in_blocks * units.rows : 0;  // of an image
  const int64_t own = units.images * gathered_vectors + (scatters ? kProductVectors * units.rows : 0);
  Kernel kernel{"product", static_cast<size_t>(turned_vectors + conv.threads * own) * sizeof(Lanes), {}};
  kernel.bind = [=](const Bindings& bind) -> Task {
    const auto* in = bind.read<Lanes>(0);
    const auto* w = bind.read<Lanes>(1);
    auto* out = bind.write<Lanes>(0);
    auto* scratch = static_cast<Lanes*>(bind.scratch);
    const Lanes* filters = conv.turned ? scratch : w;
    return [=](const StepContext&) {
#pragma omp parallel num_threads(conv.threads)
      {
        Lanes* gathered = scratch + turned_vectors + omp_get_thread_num() * own;
        Lanes* panel = gathered + units.images * gathered_vectors;
        if (conv.turned) turn_filters(conv, w, scratch);
        for_units(conv, units, scatters, out, [&](const Unit& unit) {
          for (int64_t i = 0; gathers && i < unit.images; ++i) {
            for (int64_t c = 0; c < in_blocks; ++c) {
              conv.in.gather(in, unit.n + i, c, unit.first, unit.rows,
                             gathered + i * gathered_vectors + c * units.rows);
            }
          }
          for (int64_t o = 0; o < out_blocks; o += kProductVectors) {
            const int64_t columns = std::min<int64_t>(kProductVectors, out_blocks - o);
            const Filters b{filters + o * in_blocks * kBlock, in_blocks * kBlock};
            for (int64_t i = 0; i < unit.images; ++i) {
              const Pixels a = gathers ? Pixels{gathered + i * gathered_vectors, units.rows}
                                       : Pixels{in + conv.in.x.plane(unit.n + i, 0) + unit.first, conv.pixels()};
              const Place c = scatters ? Place{panel, units.rows}
                                       : Place{out + conv.out.x.plane(unit.n + i, o) + unit.first, conv.pixels()};
              multiply_panel(columns, unit.rows, in_blocks, a, b, {{}, c, storing});
              for (int64_t j = 0; scatters && j < columns; ++j) {
                conv.out.scatter(c.column(j), unit.n + i, o + j, unit.first, unit.rows, out);
              }
            }
          }
        });
      }
    };
  };
  return kernel;
}

// Sums of the quarters of B: t1 to t4, each [column][input channel].
void sum_filters(const Convolution& conv, const Lanes* filters, Lanes* sums) {
  const int64_t depth = conv.in.blocks() / 2 * kBlock, columns = conv.out.blocks() / 2;
#pragma omp for schedule(static)
  for (int64_t o = 0; o < columns; ++o) {
    const Lanes *b1 = filters + o * 2 * depth, *b2 = filters + (o + columns) * 2 * depth;
    for (int64_t k = 0; k < depth; ++k) {
      const strassen::Sums t = strassen::sums_of_b(b1[k], b2[k], b1[depth + k], b2[depth + k]);
      Lanes* to = sums + o * depth + k;
      to[0] = t.s1;
      to[columns * depth] = t.s2;
      to[2 * columns * depth] = t.s3;
      to[3 * columns * depth] = t.s4;
    }
  }
}

Kernel with_strassen(const Convolution& conv) {
  const int64_t in_half = conv.in.blocks() / 2, out_half = conv.out.blocks() / 2;
  const int64_t half = (conv.pixels() + 1) / 2;  // the last pixel of the second half may be none
  const Units units(conv.batch(), half, kMostPixels / 2, conv.threads);
  const bool odd = conv.pixels() % 2 != 0;
  const bool gathers = odd || !conv.in.plain(), scatters = odd || !conv.out.plain();
  const Storing storing = storing_of(conv, scatters);
  const int64_t turned_vectors = conv.turned ? conv.filter_vectors() : 0;
  const int64_t shared = turned_vectors + conv.filter_vectors();
  // Of an image: its pixels, both halves of a channel together, and the sums of their quarters.
  const int64_t gathered_vectors = gathers ? 2 * in_half * 2 * units.rows : 0;
  const int64_t quarter = in_half * units.rows, image_vectors = gathered_vectors + 4 * quarter;
  const int64_t panel_vectors = scatters ? 2 * kProductVectors * 2 * units.rows : 0;
  const int64_t own = units.images * image_vectors + panel_vectors + strassen::work_vectors(units.rows);
  Kernel kernel{"strassen", static_cast<size_t>(shared + conv.threads * own) * sizeof(Lanes), {}};
  kernel.bind = [=](const Bindings& bind) -> Task {
    const auto* in = bind.read<Lanes>(0);
    const auto* w = bind.read<Lanes>(1);
    auto* out = bind.write<Lanes>(0);
    auto* scratch = static_cast<Lanes*>(bind.scratch);
    const Lanes* filters = conv.turned ? scratch : w;
    Lanes* filter_sums = scratch + turned_vectors;
    return [=](const StepContext&) {
#pragma omp parallel num_threads(conv.threads)
      {
        Lanes* images = scratch + shared + omp_get_thread_num() * own;
        Lanes* panel = images + units.images * image_vectors;
        Lanes* work = panel + panel_vectors;
        if (conv.turned) turn_filters(conv, w, scratch);
        sum_filters(conv, filters, filter_sums);
        for_units(conv, units, scatters, out, [&](const Unit& unit) {
          const auto pixels_of = [&](int64_t i, int64_t channel_half, int64_t pixel_half) -> Pixels {
            if (!gathers) {
              return {in + conv.in.x.plane(unit.n + i, channel_half * in_half) + pixel_half * half + unit.first,
                      conv.pixels()};
            }
            return {images + i * image_vectors + (channel_half * in_half * 2 + pixel_half) * units.rows,
                    2 * units.rows};
          };
          for (int64_t i = 0; i < unit.images; ++i) {
            Lanes* image = images + i * image_vectors;
            for (int64_t c = 0; gathers && c < 2 * in_half; ++c) {
              conv.in.gather(in, unit.n + i, c, unit.first, unit.rows, image + 2 * c * units.rows);
              conv.in.gather(in, unit.n + i, c, half + unit.first, unit.rows, image + (2 * c + 1) * units.rows);
            }
            const Pixels a11 = pixels_of(i, 0, 0), a12 = pixels_of(i, 1, 0), a21 = pixels_of(i, 0, 1),
                         a22 = pixels_of(i, 1, 1);
            for (int64_t c = 0; c < in_half; ++c) {
              const int64_t at = c * a11.block_stride;
              Lanes* sums = image + gathered_vectors + c * units.rows;
              for (int64_t p = at; p < at + unit.rows; ++p, ++sums) {
                const strassen::Sums s = strassen::sums_of_a(a11.data[p], a12.data[p], a21.data[p], a22.data[p]);
                sums[0] = s.s1;
                sums[quarter] = s.s2;
                sums[2 * quarter] = s.s3;
                sums[3 * quarter] = s.s4;
              }
            }
          }
          const int64_t depth = in_half * kBlock;
          for (int64_t o = 0; o < out_half; o += kProductVectors) {
            const auto filters_of = [&](int64_t column, int64_t k) {
              return Filters{filters + column * 2 * depth + k, 2 * depth};
            };
            const auto sums_of = [&](int64_t t) { return Filters{filter_sums + (t * out_half + o) * depth, depth}; };
            const strassen::RightOperands<Filters> b{
                filters_of(o, 0), filters_of(o, depth), filters_of(out_half + o, depth),
                sums_of(0),       sums_of(1),           sums_of(2),
                sums_of(3)};
            for (int64_t i = 0; i < unit.images; ++i) {
              const Lanes* sums = images + i * image_vectors + gathered_vectors;
              const auto sum = [&](int64_t s) { return Pixels{sums + s * quarter, units.rows}; };
              const strassen::LeftOperands<Pixels> a{
                  pixels_of(i, 0, 0), pixels_of(i, 1, 0), pixels_of(i, 1, 1), sum(0), sum(1), sum(2), sum(3)};
              const auto place = [&](int64_t pixel_half, int64_t column_half) -> Place {
                if (scatters) {
                  return {panel + (column_half * kProductVectors * 2 + pixel_half) * units.rows, 2 * units.rows};
                }
                return {out + conv.out.x.plane(unit.n + i, column_half * out_half + o) + pixel_half * half + unit.first,
                        conv.pixels()};
              };
              const strassen::Quarters c{place(0, 0), place(0, 1), place(1, 0), place(1, 1)};
              strassen::multiply_quarters(a, b, c, storing, unit.rows, work,
                                          [&](Pixels left, Filters right, const Result& result) {
                                            multiply<kProductVectors>(unit.rows, in_half, left, right, result);
                                          });
              for (int64_t j = 0; scatters && j < 2 * kProductVectors; ++j) {
                const int64_t column = j / kProductVectors * out_half + o + j % kProductVectors;
                const Lanes* both = panel + 2 * j * units.rows;
                conv.out.scatter(both, unit.n + i, column, unit.first, unit.rows, out);
                conv.out.scatter(both + units.rows, unit.n + i, column, half + unit.first, unit.rows, out);
              }
            }
          }
        });
      }
    };
  };
  return kernel;
}

std::vector<Kernel> kernels(const Convolution& conv) {
  std::vector<Kernel> kernels{plain(conv)};
  const bool halves = conv.in.blocks() % 2 == 0 && conv.out.blocks() % (2 * kProductVectors) == 0;
  if (halves && conv.pixels() >= 2 * kProductRows) kernels.push_back(with_strassen(conv));
  return kernels;
}

Taps itself(const BlockedShape& shape) { return {shape, shape, graph::Window::square(1)}; }

}  // namespace

std::vector<Kernel> forward_kernels(const Taps& taps) {
  return kernels({taps, itself(taps.y), false, omp_get_max_threads()});
}
std::vector<Kernel> input_gradient_kernels(const Taps& taps) {
  return kernels({itself(taps.y), taps, true, omp_get_max_threads()});
}

}  // namespace millrace::backend::cpu::matrix_conv
