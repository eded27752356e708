// Linear layers in bfloat16 without instructions for it: weights are kept in bfloat16 and widened to floats in registers,
// rows are rounded as they come in. A product of two bfloat16 is exact in a float, and sums are built in the order of
// the bfloat16 instruction, of each pair of values the second first: only numbers below the normal ones, which that
// instruction takes for 0 in its sums as well, may give other bits.
#pragma once
#include <bit>
#include <cstdint>

namespace forebay {
namespace {

// The nearest bfloat16, ties to even, as the bits of a float. What is below the normal numbers is 0.
inline std::uint32_t round_bits(std::uint32_t bits) {
  const std::uint32_t size = bits & 0x7fffffffu;
  const std::uint32_t nearest = bits + 0x7fffu + (bits >> 16 & 1u), fault = bits | 0x00400000u, none = bits & 0x80000000u;
  return (size > 0x7f800000u ? fault : size < 0x00800000u ? none : nearest) & 0xffff0000u;
}

struct Widened {
  static constexpr int kTaken = 2;               // values in a word of a panel
  static constexpr int kStep = kPanel * kTaken * 2;  // bytes of a panel for a word of each column

  static int steps(int in) { return (in + kTaken - 1) / kTaken; }
  static long row_bytes(int in) { return round_up(in, kFloatsPerLine) * 4; }
  static long panel_bytes(int in) { return static_cast<long>(steps(in)) * kStep; }

  static void convert(const float* src, int in, char* dst) {
    float* const row = reinterpret_cast<float*>(dst);
    for (int i = 0; i < in; ++i) row[i] = std::bit_cast<float>(round_bits(std::bit_cast<std::uint32_t>(src[i])));
    if (in % kTaken) row[in] = 0.0f;
  }

  // The sums of all rows go on by one value of each.
  template <int R, int V>
  static void add(T (&acc)[R][V], const T (&column)[V], const char* a, long stride) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      float value;
      __builtin_memcpy(&value, a + r * stride, sizeof value);
      const T row = Vec::set1(value);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) Vec::accumulate(acc[r][v], row, column[v]);
    }
  }

  template <int R, int V>
  static void tile(const LowTile& g) {
    T acc[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) acc[r][v] = Vec::set1(0.0f);
    const char *a = g.a, *b = g.b, *ahead = g.ahead;
    for (int k = steps(g.in); k > 0; --k, a += kTaken * 4, b += kStep, ahead += kStep / 4) {
      __builtin_prefetch(ahead, 0, 2);
      T column[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) column[v] = Vec::second_halves(b + v * Vec::width * 4);
      add<R, V>(acc, column, a + 4, g.a_stride);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) column[v] = Vec::first_halves(b + v * Vec::width * 4);
      add<R, V>(acc, column, a, g.a_stride);
    }
    put_rows<R, V>(g, acc);
  }

  static void pack(const float* weight, int out, int in, float* packed) {
    std::uint16_t* halves = reinterpret_cast<std::uint16_t*>(packed);
    for (int first = 0; first < out; first += kPanel)
      for (int step = 0; step < steps(in); ++step)
        for (int i = 0; i < kPanel * kTaken; ++i) {
          const int column = first + i / kTaken, k = step * kTaken + i % kTaken;
          const float value = column < out && k < in ? weight[static_cast<long>(column) * in + k] : 0.0f;
          *halves++ = static_cast<std::uint16_t>(round_bits(std::bit_cast<std::uint32_t>(value)) >> 16);
        }
  }
};

constexpr LinearKernel kWidenedLinear{"float32 products", low_packed_size<Widened>, Widened::pack, low_scratch<Widened>,
                                      low_linear<Widened>};

}  // namespace
}  // namespace forebay
