// One float at a time: what any processor can do, and what the vector forms are tested against.
#pragma once
#include <cmath>

namespace forebay {
namespace {

struct Vec {
  using T = float;
  static constexpr int width = 1;
  static constexpr int max_vecs = 4;

  static T load(const float* p) { return *p; }
  static T load_part(const float* p, int n) { return n > 0 ? *p : 0.0f; }
  static void store(float* p, T x) { *p = x; }
  static void store_part(float* p, T x, int n) {
    if (n > 0) *p = x;
  }
  static T set1(float x) { return x; }
  static T add(T a, T b) { return a + b; }
  static T sub(T a, T b) { return a - b; }
  static T mul(T a, T b) { return a * b; }
  static T div(T a, T b) { return a / b; }
  static T fma(T a, T b, T c) { return __builtin_fmaf(a, b, c); }
  static T fnma(T a, T b, T c) { return __builtin_fmaf(-a, b, c); }
  // The second operand is returned where either is NaN: a NaN given there passes through.
  static T max(T a, T b) { return a > b ? a : b; }
  static T min(T a, T b) { return a < b ? a : b; }
  static T abs(T x) { return __builtin_fabsf(x); }
  static T copy_sign(T x, T sign) { return __builtin_copysignf(x, sign); }
  static T round(T x) { return __builtin_nearbyintf(x); }
  static T scale2(T x, T n) { return __builtin_ldexpf(x, n == n ? static_cast<int>(n) : 0); }
  static T if_less(T a, T b, T yes, T no) { return a < b ? yes : no; }
  static T keep_first(T x, int n, T other) { return n > 0 ? x : other; }
};

}  // namespace
}  // namespace forebay
