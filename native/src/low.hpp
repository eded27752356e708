// What the linear layers of low precision share: rows are converted into scratch, then tiles of up to 6 rows by a panel
// are multiplied. A Format says how rows are converted and tiles multiplied; each sum has one order, whatever the tile.
#pragma once

namespace forebay {
namespace {

struct LowTile {
  const char* a;  // converted rows
  long a_stride;  // in bytes
  const char* b;  // a panel
  int in;
  const char* ahead;  // as in TileArgs, by steps of the depth
  Row row;            // of the first row
  long residual_stride, c_stride;
};
using LowKernel = void (*)(const LowTile&);

template <class Format, int R>
constexpr LowKernel find_low(int vecs) {
  if constexpr (Vec::max_vecs == 4) {
    if (vecs == 4) return Format::template tile<R, 4>;
    if (vecs == 3) return Format::template tile<R, 3>;
  }
  return vecs == 2 ? Format::template tile<R, 2> : Format::template tile<R, 1>;
}

template <class Format>
LowKernel find_low(int rows, int vecs) {
  switch (rows) {
    case 1: return find_low<Format, 1>(vecs);
    case 2: return find_low<Format, 2>(vecs);
    case 3: return find_low<Format, 3>(vecs);
    case 4: return find_low<Format, 4>(vecs);
    case 5: return find_low<Format, 5>(vecs);
    default: return find_low<Format, 6>(vecs);
  }
}

template <int R, int V>
inline void put_rows(const LowTile& g, const T (&sums)[R][V]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
    put<V>({g.row.bias, g.row.residual ? g.row.residual + r * g.residual_stride : nullptr, g.row.c + r * g.c_stride,
            g.row.last}, sums[r]);
}

// x Φ(x) to 4e-5, which the rounding of the next layer's input hides: Φ(t) ≈ 1/2 + t P(t²) up to 4.5, where it is 1.
inline T gelu_near(T x) {
  const T t = Vec::max(Vec::set1(-4.5f), Vec::min(Vec::set1(4.5f), x)), square = Vec::mul(t, t);
  const T p = horner(square, Vec::set1(2.999997197e-11f), -3.283903588e-09f, 1.580253974e-07f, -4.431678368e-06f,
                     8.120964227e-05f, -1.036252856e-03f, 9.580652025e-03f, -6.597726776e-02f,
                     3.987085729e-01f);
  const T share = Vec::max(Vec::set1(0.0f), Vec::min(Vec::set1(1.0f), Vec::fma(t, p, Vec::set1(0.5f))));
  return Vec::mul(Vec::max(Vec::set1(-16.0f), x), share);
}

inline void activate_low(Activation kind, float* values, int count) {
  if (kind == Activation::gelu_erf) return map<gelu_near>(values, count);
  activate(kind, values, count);
}

template <class Format>
long low_scratch(int rows, int in) {
  return rows * Format::row_bytes(in) / 4;
}

template <class Format>
long low_packed_size(int out, int in) {
  return round_up(out, kPanel) / kPanel * Format::panel_bytes(in) / 4;
}

template <class Format>
void low_linear(const LinearArgs& g) {
  if (g.rows == 0) return;
  const long a_stride = Format::row_bytes(g.in), panel_bytes = Format::panel_bytes(g.in);
  char* const a = reinterpret_cast<char*>(g.scratch);
  for (int row = 0; row < g.rows; ++row) Format::convert(g.src + row * g.src_stride, g.in, a + row * a_stride);
  const int height = even_height(g.rows), tiles = (g.rows + height - 1) / height;
  const char* panel = reinterpret_cast<const char*>(g.weight);
  for (int first = 0; first < g.out; first += kPanel, panel += panel_bytes) {
    const int columns = g.out - first < kPanel ? g.out - first : kPanel;
    const Cut cut(columns);
    const bool is_last = first + kPanel >= g.out;
    const char* next = is_last ? panel : panel + panel_bytes;
    for (int i = 0; i < tiles; ++i) {
      const int row = i * height, rows = g.rows - row < height ? g.rows - row : height;
      float* c = g.dst + row * g.dst_stride + first;
      // A step fetches one line of the next panel: after four tiles all of it has been asked for.
      const char* ahead = next + (i < 4 ? i : 0) * (panel_bytes / 4 / 64 * 64);
      find_low<Format>(rows, cut.vecs)({a + row * a_stride, a_stride, panel, g.in, ahead,
                                        {g.bias + first, g.residual ? g.residual + row * g.residual_stride + first : nullptr,
                                         c, cut.last}, g.residual_stride, g.dst_stride});
      if (g.activation != Activation::none)
        for (int r = 0; r < rows; ++r) activate_low(g.activation, c + r * g.dst_stride, columns);
    }
  }
}

}  // namespace
}  // namespace forebay
