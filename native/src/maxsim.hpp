// MaxSim of one document: for each vector of the query the largest product with any of the document's, summed. Products
// stay in registers; no more than the best of each query vector is kept. Built on the panels of a packed float weight.
#pragma once

namespace forebay {
namespace {

struct BestTile {
  const float* a;  // rows of the document
  long a_stride;
  const float* b;  // a panel of the query
  int depth;
  float* best;   // V vectors
  float* fault;  // V vectors of 0, or NaN where a product was none
};

template <int R, int V>
void best_tile(const BestTile& g) {
  T acc[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) acc[r][v] = Vec::set1(0.0f);
  const float* b = g.b;
  for (int k = 0; k < g.depth; ++k, b += kPanel) {
    T column[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) column[v] = Vec::load(b + v * Vec::width);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const T a = Vec::set1(g.a[r * g.a_stride + k]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) acc[r][v] = Vec::fma(a, column[v], acc[r][v]);
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    T best = Vec::load(g.best + v * Vec::width), fault = Vec::load(g.fault + v * Vec::width);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      best = Vec::max(best, acc[r][v]);  // a NaN in it gives way to the next product, so it is kept beside
      fault = Vec::add(fault, Vec::min(Vec::set1(0.0f), Vec::max(Vec::set1(0.0f), acc[r][v])));
    }
    Vec::store(g.best + v * Vec::width, best);
    Vec::store(g.fault + v * Vec::width, fault);
  }
}

using Best = void (*)(const BestTile&);
template <int R>
constexpr Best row_of_best(int vecs) {
  if constexpr (Vec::max_vecs == 4) {
    if (vecs == 4) return best_tile<R, 4>;
    if (vecs == 3) return best_tile<R, 3>;
  }
  return vecs == 2 ? best_tile<R, 2> : best_tile<R, 1>;
}
inline Best find_best(int rows, int vecs) {
  switch (rows) {
    case 1: return row_of_best<1>(vecs);
    case 2: return row_of_best<2>(vecs);
    case 3: return row_of_best<3>(vecs);
    case 4: return row_of_best<4>(vecs);
    case 5: return row_of_best<5>(vecs);
    default: return row_of_best<6>(vecs);
  }
}

long max_sim_scratch(int count) { return 2 * round_up(count, kPanel); }

// Each product is a sum in the order of the depth, and the largest is the same in whatever order it is looked for.
float max_sim(const MaxSimArgs& g) {
  const long padded = round_up(g.count, kPanel);
  float* const best = g.scratch;
  float* const fault = best + padded;
  for (long i = 0; i < padded; ++i) best[i] = -__builtin_inff(), fault[i] = 0.0f;
  const int height = g.rows ? even_height(g.rows) : 1;
  for (int row = 0; row < g.rows; row += height) {
    const int rows = g.rows - row < height ? g.rows - row : height;
    for (int first = 0; first < g.count; first += kPanel) {
      const Cut cut(g.count - first < kPanel ? g.count - first : kPanel);
      find_best(rows, cut.vecs)({g.document + row * g.stride, g.stride, g.query + static_cast<long>(first) * g.size,
                                 g.size, best + first, fault + first});
    }
  }
  T sum = Vec::set1(0.0f);
  over_columns(best, g.count, [&](int i, T x, int count) { sum = Vec::add(sum, Vec::add(x, Vec::load_part(fault + i, count))); });
  return reduce_add(sum);
}

}  // namespace
}  // namespace forebay
