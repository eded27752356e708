// Sixteen floats. The names are those of every Vec, so that the kernels are written once.
#pragma once
#include <immintrin.h>

namespace forebay {
namespace {

struct Vec {
  using T = __m512;
  static constexpr int width = 16;
  static constexpr int max_vecs = 4;  // accumulators a tile row: 6 rows of 4 fill 24 of 32 registers

  static __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1); }
  static T load(const float* p) { return _mm512_loadu_ps(p); }
  static T load_part(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store(float* p, T x) { _mm512_storeu_ps(p, x); }
  static void store_part(float* p, T x, int n) { _mm512_mask_storeu_ps(p, first(n), x); }
  static T set1(float x) { return _mm512_set1_ps(x); }
  static T add(T a, T b) { return _mm512_add_ps(a, b); }
  static T sub(T a, T b) { return _mm512_sub_ps(a, b); }
  static T mul(T a, T b) { return _mm512_mul_ps(a, b); }
  static T div(T a, T b) { return _mm512_div_ps(a, b); }
  static T fma(T a, T b, T c) { return _mm512_fmadd_ps(a, b, c); }
  static T fnma(T a, T b, T c) { return _mm512_fnmadd_ps(a, b, c); }
  // The second operand is returned where either is NaN: a NaN given there passes through.
  static T max(T a, T b) { return _mm512_max_ps(a, b); }
  static T min(T a, T b) { return _mm512_min_ps(a, b); }
  static T abs(T x) { return _mm512_abs_ps(x); }
  static T copy_sign(T x, T sign) {
    return _mm512_or_ps(_mm512_abs_ps(x), _mm512_and_ps(sign, _mm512_set1_ps(-0.0f)));
  }
  static T round(T x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static T scale2(T x, T n) { return _mm512_scalef_ps(x, n); }  // x * 2^n
  static T if_less(T a, T b, T yes, T no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
  }
  static T keep_first(T x, int n, T other) { return _mm512_mask_blend_ps(first(n), other, x); }
  // sum += a * b. GCC keeps many sums in registers only if the instruction is written as such.
  static void accumulate(T& sum, T a, T b) { asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b)); }
  static float lane0(T x) { return _mm512_cvtss_f32(x); }
  static float least(T x) { return _mm512_reduce_min_ps(x); }
  static float greatest(T x) { return _mm512_reduce_max_ps(x); }

  using Ints = __m512i;  // of 32 bits
  static Ints no_ints() { return _mm512_setzero_si512(); }
  static Ints to_ints(T x) { return _mm512_cvtps_epi32(x); }  // the smallest where x is NaN or too large
  static T to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }
  static Ints set1_ints(int x) { return _mm512_set1_epi32(x); }
  // The floats whose first 16 bits are the second, or the first, halves of words.
  static T second_halves(const void* words) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(words), _mm512_set1_epi32(-65536)));
  }
  static T first_halves(const void* words) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(words), 16));
  }
};

}  // namespace
}  // namespace forebay
