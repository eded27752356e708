// The matrix product: tiles of up to 6 rows by max_vecs vectors, whose sums stay in registers over the whole depth.
// Each sum is built in the order k = 0, 1, 2, …, whatever the tile, so a row's result is the same in every batch.
#pragma once

namespace forebay {
namespace {

constexpr int kTileRows = 6;
constexpr int kPanel = Vec::width * Vec::max_vecs;
constexpr int kLine = 16;  // floats in a line of the cache

struct TileArgs {
  const float* a;  // [rows, depth]
  long a_stride;
  const float* b;  // [depth, vecs * width], readable in full
  long b_stride;
  int depth;
  const float* ahead;     // lines that a later tile will want, one for every step of the depth
  const float* bias;      // vecs * width floats, or null
  const float* residual;  // [rows, columns], or null
  long residual_stride;
  float* c;  // [rows, columns]
  long c_stride;
  int last;  // columns of the last vector that are written
};

// Where V vectors of sums go.
struct Row {
  const float* bias;
  const float* residual;
  float* c;
  int last;
};

template <int V>
inline void put(const Row& row, const T (&sums)[V]) {
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    const int count = v == V - 1 ? row.last : Vec::width;
    T y = sums[v];
    if (row.bias) y = Vec::add(y, Vec::load(row.bias + v * Vec::width));
    if (row.residual) y = Vec::add(y, Vec::load_part(row.residual + v * Vec::width, count));
    if (count == Vec::width)
      Vec::store(row.c + v * Vec::width, y);
    else
      Vec::store_part(row.c + v * Vec::width, y, count);
  }
}

template <int R, int V>
void tile(const TileArgs& g) {
  T acc[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) acc[r][v] = Vec::set1(0.0f);
  const float* b = g.b;
  for (int k = 0; k < g.depth; ++k, b += g.b_stride) {
    __builtin_prefetch(g.ahead + static_cast<long>(k) * kLine, 0, 2);
    T column[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) column[v] = Vec::load(b + v * Vec::width);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      T a = Vec::set1(g.a[r * g.a_stride + k]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) acc[r][v] = Vec::fma(a, column[v], acc[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
    put<V>({g.bias, g.residual ? g.residual + r * g.residual_stride : nullptr, g.c + r * g.c_stride, g.last}, acc[r]);
}

using Tile = void (*)(const TileArgs&);
template <int R>
constexpr Tile row_of_tiles(int vecs) {
  if constexpr (Vec::max_vecs == 4) {
    if (vecs == 4) return tile<R, 4>;
    if (vecs == 3) return tile<R, 3>;
  }
  return vecs == 2 ? tile<R, 2> : tile<R, 1>;
}

inline Tile find_tile(int rows, int vecs) {
  switch (rows) {
    case 1: return row_of_tiles<1>(vecs);
    case 2: return row_of_tiles<2>(vecs);
    case 3: return row_of_tiles<3>(vecs);
    case 4: return row_of_tiles<4>(vecs);
    case 5: return row_of_tiles<5>(vecs);
    default: return row_of_tiles<6>(vecs);
  }
}

// Columns of c from a panel of b: how many vectors, and how many columns of the last.
struct Cut {
  int vecs, last;
  explicit Cut(int columns) : vecs((columns + Vec::width - 1) / Vec::width), last(columns - (vecs - 1) * Vec::width) {}
};

// Equal heights rather than full tiles and a rest: 8 rows are 4 and 4, not 6 and 2.
inline int even_height(int rows) {
  int tiles = (rows + kTileRows - 1) / kTileRows;
  return (rows + tiles - 1) / tiles;
}

long packed_size(int out, int in) { return round_up(out, kPanel) * in; }
long no_scratch(int, int) { return 0; }

void pack(const float* weight, int out, int in, float* packed) {
  for (int first = 0; first < out; first += kPanel)
    for (int k = 0; k < in; ++k)
      for (int j = 0; j < kPanel; ++j)
        *packed++ = first + j < out ? weight[static_cast<long>(first + j) * in + k] : 0.0f;
}

void linear(const LinearArgs& g) {
  if (g.rows == 0) return;
  const int height = even_height(g.rows);
  for (int first = 0; first < g.out; first += kPanel) {
    const int columns = g.out - first < kPanel ? g.out - first : kPanel;
    const Cut cut(columns);
    const float* panel = g.weight + static_cast<long>(first) * g.in;
    // The first tile of a panel would wait for the third-level cache: the tiles before fetch its lines piece by piece.
    const float* next = first + kPanel < g.out ? panel + static_cast<long>(kPanel) * g.in : panel;
    const float* end = next + static_cast<long>(kPanel) * g.in;
    for (int row = 0; row < g.rows; row += height, next += static_cast<long>(kLine) * g.in) {
      const int rows = g.rows - row < height ? g.rows - row : height;
      float* c = g.dst + row * g.dst_stride + first;
      find_tile(rows, cut.vecs)({g.src + row * g.src_stride, g.src_stride, panel, kPanel, g.in,
                                 next < end ? next : panel, g.bias + first,
                                 g.residual ? g.residual + row * g.residual_stride + first : nullptr,
                                 g.residual_stride, c, g.dst_stride, cut.last});
      if (g.activation != Activation::none)
        for (int r = 0; r < rows; ++r) activate(g.activation, c + r * g.dst_stride, columns);
    }
  }
}

[[maybe_unused]] constexpr LinearKernel kFloatLinear{"float32", packed_size, pack, no_scratch, linear};

}  // namespace
}  // namespace forebay
