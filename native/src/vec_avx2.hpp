// Eight floats. The names are those of every Vec, so that the kernels are written once.
#pragma once
#include <immintrin.h>

namespace forebay {
namespace {

struct Vec {
  using T = __m256;
  static constexpr int width = 8;
  static constexpr int max_vecs = 2;  // accumulators a tile row: 6 rows of 2 fill 12 of 16 registers

  static __m256i first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static T load(const float* p) { return _mm256_loadu_ps(p); }
  static T load_part(const float* p, int n) { return _mm256_maskload_ps(p, first(n)); }
  static void store(float* p, T x) { _mm256_storeu_ps(p, x); }
  static void store_part(float* p, T x, int n) { _mm256_maskstore_ps(p, first(n), x); }
  static T set1(float x) { return _mm256_set1_ps(x); }
  static T add(T a, T b) { return _mm256_add_ps(a, b); }
  static T sub(T a, T b) { return _mm256_sub_ps(a, b); }
  static T mul(T a, T b) { return _mm256_mul_ps(a, b); }
  static T div(T a, T b) { return _mm256_div_ps(a, b); }
  static T fma(T a, T b, T c) { return _mm256_fmadd_ps(a, b, c); }
  static T fnma(T a, T b, T c) { return _mm256_fnmadd_ps(a, b, c); }
  // The second operand is returned where either is NaN: a NaN given there passes through.
  static T max(T a, T b) { return _mm256_max_ps(a, b); }
  static T min(T a, T b) { return _mm256_min_ps(a, b); }
  static T abs(T x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
  static T copy_sign(T x, T sign) { return _mm256_or_ps(abs(x), _mm256_and_ps(sign, _mm256_set1_ps(-0.0f))); }
  static T round(T x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static T power2(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }
  static T scale2(T x, T n) {  // x * 2^n in two steps, as 2^n alone may lie outside the normal numbers
    __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    return mul(mul(x, power2(half)), power2(_mm256_sub_epi32(whole, half)));
  }
  static T if_less(T a, T b, T yes, T no) { return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ)); }
  static T keep_first(T x, int n, T other) {
    return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(first(n)));
  }
  // sum += a * b. GCC keeps many sums in registers only if the instruction is written as such.
  static void accumulate(T& sum, T a, T b) { asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b)); }
  static float lane0(T x) { return _mm256_cvtss_f32(x); }
  static float least(T x) {
    __m128 y = _mm_min_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_min_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_min_ss(y, _mm_movehdup_ps(y)));
  }
  static float greatest(T x) {
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
  }

  using Ints = __m256i;  // of 32 bits
  static Ints no_ints() { return _mm256_setzero_si256(); }
  static Ints to_ints(T x) { return _mm256_cvtps_epi32(x); }  // the smallest where x is NaN or too large
  static T to_floats(Ints x) { return _mm256_cvtepi32_ps(x); }
  static Ints set1_ints(int x) { return _mm256_set1_epi32(x); }
  // The floats whose first 16 bits are the second, or the first, halves of words.
  static T second_halves(const void* words) {
    return _mm256_castsi256_ps(_mm256_and_si256(load_words(words), _mm256_set1_epi32(-65536)));
  }
  static T first_halves(const void* words) { return _mm256_castsi256_ps(_mm256_slli_epi32(load_words(words), 16)); }
  static __m256i load_words(const void* words) { return _mm256_loadu_si256(static_cast<const __m256i*>(words)); }
};

}  // namespace
}  // namespace forebay
