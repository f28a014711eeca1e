// The weight gradient as a product: rows are input channels, tap by tap, columns output channels, summed over pixels.
// Every thread sums over units of its own.
#include <omp.h>

#include "millrace/backend/cpu/ahead.h"
#include "millrace/backend/cpu/matrix_conv.h"
#include "millrace/backend/cpu/matrix_tile.h"
#include "millrace/backend/cpu/strassen.h"

namespace millrace::backend::cpu::matrix_conv {
namespace {

// Channel blocks of the pixels of a unit: pixel p of image i at data[block * block_stride + i * image_stride + p].
struct Planes {
  const Lanes* data;
  int64_t block_stride, image_stride;
};

// What of both operands is wanted next.
struct Coming {
  Ahead x, dy;

  [[gnu::always_inline]] void fetch() {
    x.fetch();
    dy.fetch();
  }
};

// Sums over all pixels of the unit for the channels of `blocks` blocks of a.
template <int kColumns>
void multiply(const Unit& unit, int64_t blocks, Planes a, Planes b, const Result& result, Coming& coming) {
  for (int64_t block = 0; block < blocks; ++block) {
    const auto* channels = reinterpret_cast<const float*>(a.data + block * a.block_stride);
    in_tiles(kBlock, [&]<int kRows>(int64_t row) {
      const Result at = result.from_row(block * kBlock + row);
      Sums<kRows, kColumns> sums(at);
      for (int64_t i = 0; i < unit.images; ++i) {
        const float* pixels = channels + row + i * a.image_stride * kBlock;
        const Lanes* gradients = b.data + i * b.image_stride;
        for (int64_t p = 0; p < unit.rows; p += kBlock) {
          coming.fetch();
          gradients = sums.template add_products<1, kBlock>(pixels + p * kBlock, gradients, b.block_stride,
                                                            std::min<int64_t>(kBlock, unit.rows - p));
        }
      }
      sums.store(at);
    });
  }
}

void multiply_panel(int64_t columns, const Unit& unit, int64_t blocks, Planes a, Planes b, const Result& result,
                    Coming& coming) {
  switch (columns) {
    case 1: multiply<1>(unit, blocks, a, b, result, coming); break;
    case 2: multiply<2>(unit, blocks, a, b, result, coming); break;
    case 3: multiply<3>(unit, blocks, a, b, result, coming); break;
    default: multiply<kProductVectors>(unit, blocks, a, b, result, coming);
  }
}

// How often a product of a unit asks for what follows it.
int64_t fetches(const Unit& unit, int64_t in_blocks, int64_t out_blocks) {
  const int64_t panels = (out_blocks + kProductVectors - 1) / kProductVectors;
  const int64_t tiles = (kBlock + kProductRows - 1) / kProductRows;
  return panels * in_blocks * tiles * unit.images * ((unit.rows + kBlock - 1) / kBlock);
}

// Each unit reads and writes all sums once: units are larger than where results are written once.
constexpr int64_t kMostPixelsOfSums = 2 * kMostPixels;

struct WeightGradient {
  Taps x, y;  // y: those of its own pixels
  int threads;

  int64_t pixels() const { return x.y.pixels(); }
  int64_t batch() const { return x.y.batch; }
  int64_t vectors() const { return x.blocks() * kBlock * y.blocks(); }
};

// Within a parallel region: what the other threads have found is added in their order, so that the same number of
// threads gives the same bits. A thread without a unit has found nothing.
void add_threads(const WeightGradient& grad, const Units& units, const Lanes* found, int64_t thread_stride, Lanes* dw) {
  const int64_t share = (units.count + grad.threads - 1) / grad.threads, with_units = (units.count + share - 1) / share;
#pragma omp for schedule(static)
  for (int64_t i = 0; i < grad.vectors(); ++i) {
    Lanes sum = dw[i];
    for (int64_t thread = 1; thread < with_units; ++thread) sum += found[thread * thread_stride + i];
    dw[i] = sum;
  }
}

// Kernel of `sum_unit(x, dy, unit, next unit of the thread, add, dw, work)`, which adds what one unit brings, in
// `work_vectors` of memory.
template <typename SumUnit>
Kernel over_units(const char* name, const WeightGradient& grad, const Units& units, int64_t work_vectors,
                  const SumUnit& sum_unit) {
  const int64_t found_vectors = grad.threads > 1 ? grad.vectors() : 0, own = found_vectors + work_vectors;
  Kernel kernel{name, static_cast<size_t>(grad.threads * own) * sizeof(Lanes), {}};
  kernel.bind = [=](const Bindings& bind) -> Task {
    const auto* x = bind.read<Lanes>(0);
    const auto* dy = bind.read<Lanes>(1);
    auto* dw = bind.write<Lanes>(0);
    auto* scratch = static_cast<Lanes*>(bind.scratch);
    return [=](const StepContext&) {
#pragma omp parallel num_threads(grad.threads)
      {
        Lanes* found = scratch + omp_get_thread_num() * own;
        const int64_t thread = omp_get_thread_num(), share = (units.count + grad.threads - 1) / grad.threads;
        const int64_t begin = thread * share, end = std::min(begin + share, units.count);
        for (int64_t index = begin; index < end; ++index) {
          // The first thread has the first units: its sums are where all are added up.
          sum_unit(x, dy, units.at(index), index + 1 < end ? units.at(index + 1) : Unit{}, index > begin,
                   thread == 0 ? dw : found, found + found_vectors);
        }
#pragma omp barrier
        add_threads(grad, units, scratch, own, dw);
      }
    };
  };
  return kernel;
}

Kernel plain(const WeightGradient& grad) {
  const int64_t in_blocks = grad.x.blocks(), out_blocks = grad.y.blocks();
  const Units units(grad.batch(), grad.pixels(), kMostPixelsOfSums, grad.threads);
  const bool gathers = !grad.x.plain();
  // The smaller operand is read again and again, the larger one only once.
  const bool x_once = in_blocks > out_blocks;
  const int64_t gathered_blocks = x_once ? 1 : in_blocks;
  const int64_t image_vectors = gathers ? gathered_blocks * units.rows : 0;
  return over_units(
      "product", grad, units, units.images * image_vectors,
      [=](const Lanes* x, const Lanes* dy, const Unit& unit, const Unit& next, bool add, Lanes* dw, Lanes* work) {
        const auto channels = [&](const Unit& of, int64_t block) { return x + grad.x.x.plane(of.n, block) + of.first; };
        const auto gradients = [&](const Unit& of, int64_t o) {
          return Planes{dy + grad.y.x.plane(of.n, o) + of.first, grad.pixels(), out_blocks * grad.pixels()};
        };
        const auto channels_of_unit = [&](int64_t first, int64_t blocks) -> Planes {
          if (!gathers) return {channels(unit, first), grad.pixels(), in_blocks * grad.pixels()};
          for (int64_t i = 0; i < unit.images; ++i) {
            for (int64_t c = 0; c < blocks; ++c) {
              grad.x.gather(x, unit.n + i, first + c, unit.first, unit.rows, work + i * image_vectors + c * units.rows);
            }
          }
          return {work, units.rows, image_vectors};
        };
        const auto multiply_at = [&](const Planes& a, int64_t first, int64_t blocks, int64_t o, Coming& coming) {
          const Place c{dw + (o * in_blocks + first) * kBlock, in_blocks * kBlock};
          multiply_panel(std::min<int64_t>(kProductVectors, out_blocks - o), unit, blocks, a, gradients(unit, o),
                         {{}, c, add ? Storing::Adding : Storing::Plain}, coming);
        };
        // Of what is read once the next piece is asked for, of the other operand all of the next unit.
        Coming coming;
        const int64_t calls = fetches(unit, in_blocks, out_blocks);
        if (x_once) {
          coming.dy = Ahead(gradients(next, 0).data, next.rows, out_blocks * next.images, grad.pixels(), calls);
          for (int64_t block = 0; block < in_blocks; ++block) {
            const Planes a = channels_of_unit(block, 1);
            const int64_t following = block + 1 < in_blocks ? block + 1 : 0;
            const Unit& of = following > 0 ? unit : next;
            if (!gathers) {
              coming.x = Ahead(channels(of, following), of.rows, of.images, a.image_stride, calls / in_blocks);
            }
            for (int64_t o = 0; o < out_blocks; o += kProductVectors) multiply_at(a, block, 1, o, coming);
          }
        } else {
          const Planes a = channels_of_unit(0, in_blocks);
          if (!gathers) coming.x = Ahead(channels(next, 0), next.rows, in_blocks * next.images, grad.pixels(), calls);
          for (int64_t o = 0; o < out_blocks; o += kProductVectors) {
            const int64_t following = o + kProductVectors < out_blocks ? o + kProductVectors : 0;
            const Unit& of = following > 0 ? unit : next;
            // Several images of a unit are whole ones: their panels lie in one piece.
            const bool whole = of.images > 1;
            coming.dy = Ahead(gradients(of, following).data, of.rows * (whole ? kProductVectors : 1),
                              whole ? of.images : kProductVectors, grad.pixels() * (whole ? out_blocks : 1),
                              fetches(unit, in_blocks, 1));
            multiply_at(a, 0, in_blocks, o, coming);
          }
        }
      });
}

// Both halves of the pixels of a unit, and of each image the sums of its quarters s1 to s4.
struct Halves {
  Planes quarters[2][2];  // [channel half][pixel half]
  Planes sums[4];
};

// Makes the halves of one operand, in `memory`.
class HalvesMaker {
 public:
  HalvesMaker(const Taps& taps, int64_t half, const Units& units)
      : taps_(taps), half_(half), rows_(units.rows), gathers_(taps.y.pixels() % 2 != 0 || !taps.plain()) {
    blocks_ = taps.blocks() / 2;
    gathered_ = gathers_ ? 2 * blocks_ * 2 * rows_ : 0;
    image_vectors_ = gathered_ + 4 * blocks_ * rows_;
  }
  int64_t image_vectors() const { return image_vectors_; }
  bool gathers() const { return gathers_; }

  template <typename Sum>  // of four quarters
  Halves operator()(const Lanes* from, const Unit& unit, Lanes* memory, const Sum& sum_of) const {
    Halves halves;
    for (int64_t channel = 0; channel < 2; ++channel) {
      for (int64_t pixel = 0; pixel < 2; ++pixel) {
        halves.quarters[channel][pixel] =
            gathers_ ? Planes{memory + (channel * blocks_ * 2 + pixel) * rows_, 2 * rows_, image_vectors_}
                     : Planes{from + taps_.x.plane(unit.n, channel * blocks_) + pixel * half_ + unit.first,
                              taps_.x.pixels(), 2 * blocks_ * taps_.x.pixels()};
      }
    }
    for (int64_t s = 0; s < 4; ++s) halves.sums[s] = {memory + gathered_ + s * blocks_ * rows_, rows_, image_vectors_};
    for (int64_t i = 0; i < unit.images; ++i) {
      Lanes* image = memory + i * image_vectors_;
      for (int64_t c = 0; gathers_ && c < 2 * blocks_; ++c) {
        taps_.gather(from, unit.n + i, c, unit.first, unit.rows, image + 2 * c * rows_);
        taps_.gather(from, unit.n + i, c, half_ + unit.first, unit.rows, image + (2 * c + 1) * rows_);
      }
      for (int64_t c = 0; c < blocks_; ++c) {
        const auto plane = [&](int64_t channel, int64_t pixel) {
          const Planes& quarter = halves.quarters[channel][pixel];
          return quarter.data + i * quarter.image_stride + c * quarter.block_stride;
        };
        const Lanes *q11 = plane(0, 0), *q12 = plane(0, 1), *q21 = plane(1, 0), *q22 = plane(1, 1);
        Lanes* to = image + gathered_ + c * rows_;
        for (int64_t p = 0; p < unit.rows; ++p) {
          const strassen::Sums sums = sum_of(q11[p], q12[p], q21[p], q22[p]);
          to[p] = sums.s1;
          to[blocks_ * rows_ + p] = sums.s2;
          to[2 * blocks_ * rows_ + p] = sums.s3;
          to[3 * blocks_ * rows_ + p] = sums.s4;
        }
      }
    }
    return halves;
  }

 private:
  Taps taps_;
  int64_t half_, rows_;
  bool gathers_;
  int64_t blocks_, gathered_, image_vectors_;
};

Kernel with_strassen(const WeightGradient& grad) {
  constexpr int64_t kChunkBlocks = 8;  // of rows: what is on its way stays in the nearest cache
  const int64_t in_half = grad.x.blocks() / 2, out_half = grad.y.blocks() / 2;
  const int64_t half = (grad.pixels() + 1) / 2;
  const Units units(grad.batch(), half, kMostPixelsOfSums / 2, grad.threads);
  const HalvesMaker halves_of_x(grad.x, half, units), halves_of_y(grad.y, half, units);
  const int64_t x_vectors = units.images * halves_of_x.image_vectors();
  const int64_t y_vectors = units.images * halves_of_y.image_vectors();
  return over_units(
      "strassen", grad, units, x_vectors + y_vectors + strassen::work_vectors(kChunkBlocks * kBlock),
      [=](const Lanes* x, const Lanes* dy, const Unit& unit, const Unit& next, bool add, Lanes* dw, Lanes* work) {
        // Rows of A are channels, its columns pixels; of B the other way round.
        const Halves xs = halves_of_x(x, unit, work, strassen::sums_of_a);
        const Halves ys = halves_of_y(dy, unit, work + x_vectors, [](Lanes o1p1, Lanes o1p2, Lanes o2p1, Lanes o2p2) {
          return strassen::sums_of_b(o1p1, o2p1, o1p2, o2p2);
        });
        const auto from_block = [](Planes planes, int64_t block) {
          planes.data += block * planes.block_stride;
          return planes;
        };
        Coming coming;
        const int64_t calls = 7 * fetches(unit, in_half, out_half);
        if (!halves_of_x.gathers()) {
          coming.x =
              Ahead(x + grad.x.x.plane(next.n, 0) + next.first, next.rows, 4 * in_half * next.images, half, calls);
        }
        if (!halves_of_y.gathers()) {
          coming.dy =
              Ahead(dy + grad.y.x.plane(next.n, 0) + next.first, next.rows, 4 * out_half * next.images, half, calls);
        }
        const int64_t filter = 2 * in_half * kBlock;
        for (int64_t o = 0; o < out_half; o += kProductVectors) {
          const strassen::RightOperands<Planes> b{from_block(ys.quarters[0][0], o), from_block(ys.quarters[0][1], o),
                                                  from_block(ys.quarters[1][1], o), from_block(ys.sums[0], o),
                                                  from_block(ys.sums[1], o),        from_block(ys.sums[2], o),
                                                  from_block(ys.sums[3], o)};
          for (int64_t first = 0; first < in_half; first += kChunkBlocks) {
            const int64_t blocks = std::min(kChunkBlocks, in_half - first);
            const strassen::LeftOperands<Planes> a{
                from_block(xs.quarters[0][0], first), from_block(xs.quarters[0][1], first),
                from_block(xs.quarters[1][1], first), from_block(xs.sums[0], first),
                from_block(xs.sums[1], first),        from_block(xs.sums[2], first),
                from_block(xs.sums[3], first)};
            const auto place = [&](int64_t row_half, int64_t column_half) {
              return Place{dw + (column_half * out_half + o) * filter + (row_half * in_half + first) * kBlock, filter};
            };
            const strassen::Quarters c{place(0, 0), place(0, 1), place(1, 0), place(1, 1)};
            strassen::multiply_quarters(a, b, c, add ? Storing::Adding : Storing::Plain, blocks * kBlock,
                                        work + x_vectors + y_vectors,
                                        [&](Planes left, Planes right, const Result& result) {
                                          multiply<kProductVectors>(unit, blocks, left, right, result, coming);
                                        });
          }
        }
      });
}

}  // namespace

std::vector<Kernel> weight_gradient_kernels(const Taps& taps) {
  const WeightGradient grad{taps, {taps.y, taps.y, graph::Window::square(1)}, omp_get_max_threads()};
  std::vector<Kernel> kernels{plain(grad)};
  const bool halves = grad.x.blocks() % 2 == 0 && grad.y.blocks() % (2 * kProductVectors) == 0;
  if (halves && grad.pixels() >= 2 * kProductRows) kernels.push_back(with_strassen(grad));
  return kernels;
}

}  // namespace millrace::backend::cpu::matrix_conv
