// Linear layers in int8 (AVX-512 VNNI). The depth is cut into groups of 128 values; in each, a weight row has a scale
// and an activation row a scale and a zero point of its own, found as it comes in. Sums within a group are whole numbers.
#include "kernels.hpp"
#include "vec_avx512.hpp"
// clang-format off: the rest is written in terms of Vec
#include "math.hpp"
#include "gemm.hpp"
#include "low.hpp"

namespace forebay {
namespace {

constexpr int kGroup = 128;
constexpr int kQuad = 4;           // values that one product takes
constexpr float kSmallest = 1e-30f;  // of a scale: what is smaller counts as 0

struct Int8 {
  static int groups(int in) { return (in + kGroup - 1) / kGroup; }
  static int steps(int values) { return (values + kQuad - 1) / kQuad; }
  static int values(int in, int group) { return in - group * kGroup < kGroup ? in - group * kGroup : kGroup; }

  // A row: for each group its scale and zero point, then the bytes.
  static long head_bytes(int in) { return round_up(groups(in) * 8, 64); }
  static long row_bytes(int in) { return head_bytes(in) + round_up(in, 64); }
  // A panel: for each group the scales of its columns, scale * sum of the weights, then the weights.
  static constexpr long kHead = 2 * kPanel * 4;
  static long panel_bytes(int in) {
    return groups(in) * kHead + (static_cast<long>(groups(in) - 1) * (kGroup / kQuad) +
                                 steps(values(in, groups(in) - 1))) * kPanel * kQuad;
  }

  static void convert(const float* src, int in, char* dst) {
    float* head = reinterpret_cast<float*>(dst);
    char* bytes = dst + head_bytes(in);
    for (int group = 0; group < groups(in); ++group) quantize(src + group * kGroup, values(in, group), head + 2 * group,
                                                              bytes + group * kGroup);
  }

  static void quantize(const float* src, int count, float* head, char* bytes) {
    T low = Vec::set1(0.0f), high = low, fault = low;
    for (int i = 0; i < count; i += Vec::width) {
      const T x = Vec::load_part(src + i, count - i < Vec::width ? count - i : Vec::width);
      low = Vec::min(x, low), high = Vec::max(x, high);
      fault = Vec::add(fault, Vec::sub(x, x));  // NaN where x is no finite number
    }
    const float bottom = _mm512_reduce_min_ps(low), top = _mm512_reduce_max_ps(high);
    float scale = top * (1.0f / 255) - bottom * (1.0f / 255);
    if (scale < kSmallest) scale = 0.0f;
    const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    const T factor = Vec::set1(inverse), zero = Vec::round(Vec::set1(-bottom * inverse));
    for (int i = 0; i < count; i += Vec::width) {
      const T x = Vec::load_part(src + i, count - i < Vec::width ? count - i : Vec::width);
      const __m512i q = _mm512_cvtps_epi32(Vec::add(Vec::round(Vec::mul(x, factor)), zero));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes + i),
                       _mm512_cvtusepi32_epi8(_mm512_max_epi32(q, _mm512_setzero_si512())));
    }
    head[0] = scale + reduce_add(fault);
    head[1] = _mm512_cvtss_f32(zero);
  }

  // GCC keeps the sums in registers only if the instruction is written as such.
  static void dot(__m512i& sum, __m512i row, __m512i column) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(row), "v"(column));
  }

  template <int R, int V, int A>
  static void add_group(const LowTile& g, int group, const char* b, T (&y)[R][V]) {
    __m512i acc[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) acc[r][v] = _mm512_setzero_si512();
    const float* scales = reinterpret_cast<const float*>(b);
    const char* weights = b + kHead;
    const char* a = g.a + head_bytes(g.in) + group * kGroup;
    const char* ahead = g.ahead + (b - g.b) / 4 * A;
    for (int k = steps(values(g.in, group)); k > 0; --k, weights += kPanel * kQuad, a += kQuad, ahead += A * 64) {
#pragma GCC unroll 4
      for (int line = 0; line < A; ++line) __builtin_prefetch(ahead + line * 64, 0, 2);
      __m512i column[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) column[v] = _mm512_load_si512(weights + v * 64);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        int quad;
        __builtin_memcpy(&quad, a + r * g.a_stride, sizeof quad);
        const __m512i row = _mm512_set1_epi32(quad);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) dot(acc[r][v], row, column[v]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const float* head = reinterpret_cast<const float*>(g.a + r * g.a_stride) + 2 * group;
      const T scale = Vec::set1(head[0]), zero = Vec::set1(head[1]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        const T product = Vec::mul(_mm512_cvtepi32_ps(acc[r][v]), Vec::load(scales + v * Vec::width));
        y[r][v] = Vec::fma(scale, Vec::fnma(zero, Vec::load(scales + kPanel + v * Vec::width), product), y[r][v]);
      }
    }
  }

  template <int R, int V, int A>
  static void tile(const LowTile& g) {
    T y[R][V];
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) y[r][v] = Vec::set1(0.0f);
    const char* b = g.b;
    for (int group = 0; group < groups(g.in); ++group, b += kHead + kGroup * kPanel) add_group<R, V, A>(g, group, b, y);
    put_rows<R, V>(g, y);
  }

  static void pack(const float* weight, int out, int in, float* packed) {
    char* b = reinterpret_cast<char*>(packed);
    for (int first = 0; first < out; first += kPanel)
      for (int group = 0; group < groups(in); ++group) {
        const int count = values(in, group);
        float* scales = reinterpret_cast<float*>(b);
        signed char* bytes = reinterpret_cast<signed char*>(b + kHead);
        __builtin_memset(b, 0, kHead + static_cast<long>(steps(count)) * kPanel * kQuad);
        for (int j = 0; j < kPanel && first + j < out; ++j) {
          const float* row = weight + static_cast<long>(first + j) * in + group * kGroup;
          scales[j] = quantize_weights(row, count, bytes + j * kQuad, scales + kPanel + j);
        }
        b += kHead + static_cast<long>(steps(count)) * kPanel * kQuad;
      }
  }

  // Bytes of one column, kPanel * kQuad apart a step; returns their scale and leaves scale * sum in `offset`.
  static float quantize_weights(const float* row, int count, signed char* bytes, float* offset) {
    float most = 0.0f;
    for (int k = 0; k < count; ++k) most = __builtin_fabsf(row[k]) > most ? __builtin_fabsf(row[k]) : most;
    const float scale = most / 127 < kSmallest ? 0.0f : most / 127;
    const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    int sum = 0;
    for (int k = 0; k < count; ++k) {
      const int q = static_cast<int>(__builtin_nearbyintf(row[k] * inverse));
      bytes[static_cast<long>(k / kQuad) * kPanel * kQuad + k % kQuad] = static_cast<signed char>(q);
      sum += q;
    }
    *offset = scale * static_cast<float>(sum);
    return scale;
  }
};

}  // namespace

const LinearKernel* avx512_int8_linear() {
  static constexpr LinearKernel kernel{low_packed_size<Int8>, Int8::pack, low_scratch<Int8>, low_linear<Int8>};
  return __builtin_cpu_supports("avx512vnni") ? &kernel : nullptr;
}

}  // namespace forebay
