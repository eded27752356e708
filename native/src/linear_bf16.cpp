// Linear layers in bfloat16 with sums in floats (AVX-512 BF16): weights are rounded when packed, rows when they come in.
#include <cstdint>

#include "kernels.hpp"
#include "vec_avx512.hpp"
// clang-format off: the rest is written in terms of Vec
#include "math.hpp"
#include "gemm.hpp"
#include "attention.hpp"
#include "low.hpp"

namespace forebay {
namespace {

constexpr int kPair = 2;  // values that one product takes

struct Bf16 {
  static int steps(int in) { return (in + kPair - 1) / kPair; }
  static long row_bytes(int in) { return round_up(in, 32) * 2; }
  static long panel_bytes(int in) { return static_cast<long>(steps(in)) * kPanel * kPair * 2; }

  static void convert(const float* src, int in, char* dst) {
    for (int i = 0; i < in; i += 16) {
      const int count = in - i < 16 ? in - i : 16;
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + i * 2),
                          reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(Vec::load_part(src + i, count))));
    }
  }

  template <int R, int V>
  static void tile(const LowTile& g) {
    T acc[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) acc[r][v] = Vec::set1(0.0f);
    const char* b = g.b;
    const char* a = g.a;
    for (int k = steps(g.in); k > 0; --k, b += kPanel * kPair * 2, a += kPair * 2) {
      __builtin_prefetch(g.ahead + (b - g.b) / 4, 0, 2);
      __m512bh column[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) column[v] = reinterpret_cast<__m512bh>(_mm512_load_si512(b + v * 64));
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        int pair;
        __builtin_memcpy(&pair, a + r * g.a_stride, sizeof pair);
        const __m512bh row = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], row, column[v]);
      }
    }
    put_rows<R, V>(g, acc);
  }

  static void pack(const float* weight, int out, int in, float* packed) {
    const long panel_words = panel_bytes(in) / 4;
    for (int first = 0; first < out; first += kPanel, packed += panel_words)
      for (int step = 0; step < steps(in); ++step)
        for (int j = 0; j < kPanel; j += 8) {
          float pairs[16];
          for (int i = 0; i < 16; ++i) {
            const int column = first + j + i / kPair, k = step * kPair + i % kPair;
            pairs[i] = column < out && k < in ? weight[static_cast<long>(column) * in + k] : 0.0f;
          }
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(packed + static_cast<long>(step) * kPanel + j),
                              reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(Vec::load(pairs))));
        }
  }
};

}  // namespace
}  // namespace forebay
#include "attention_bf16.hpp"

namespace forebay {

const AttentionKernel* avx512_bf16_attention() {
  static constexpr AttentionKernel kernel{Precision::bfloat16, attention_scratch<Bf16Rows>, attention<Bf16Rows>};
  return __builtin_cpu_supports("avx512bf16") ? &kernel : nullptr;
}

const LinearKernel* avx512_bf16_linear() {
  static constexpr LinearKernel kernel{"AVX-512 BF16", low_packed_size<Bf16>, Bf16::pack, low_scratch<Bf16>,
                                       low_linear<Bf16>};
  return __builtin_cpu_supports("avx512bf16") ? &kernel : nullptr;
}

}  // namespace forebay
