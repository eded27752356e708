// Elementwise functions on a Vec, each within a few units in the last place of the exact value.
// The coefficients are minimax fits of this project's own, made in double precision and rounded to float.
#pragma once

namespace forebay {
namespace {

using T = Vec::T;

inline T horner(T, T sum) { return sum; }
template <class... Rest>
inline T horner(T x, T sum, float next, Rest... rest) {
  return horner(x, Vec::fma(sum, x, Vec::set1(next)), rest...);
}

// e^x = 2^n e^r with |r| ≤ ln 2 / 2, for x from -104, where it is 0, to 89, where it is infinity; NaN stays.
inline T exp_in_range(T x) {
  T n = Vec::round(Vec::mul(x, Vec::set1(1.44269504f)));
  T r = Vec::fnma(n, Vec::set1(0.693359375f), x);  // ln 2 in two parts, the first with few bits
  r = Vec::fnma(n, Vec::set1(-2.12194440e-4f), r);
  T p = horner(r, Vec::set1(1.381453825e-03f), 8.368745446e-03f, 4.166838899e-02f, 1.666652113e-01f, 4.999999404e-01f);
  return Vec::scale2(Vec::add(Vec::fma(p, Vec::mul(r, r), r), Vec::set1(1.0f)), n);
}

inline T exp(T x) { return exp_in_range(Vec::min(Vec::set1(89.0f), Vec::max(Vec::set1(-104.0f), x))); }

// 2^x for x ≤ 0; below -151 the result is 0; NaN stays.
inline T exp2_of_negative(T x) {
  x = Vec::max(Vec::set1(-151.0f), x);
  T n = Vec::round(x);
  T r = Vec::sub(x, n);
  T p = horner(r, Vec::set1(1.535325719e-04f), 1.339900424e-03f, 9.618438780e-03f, 5.550331995e-02f, 2.402264774e-01f,
               6.931471825e-01f, 1.0f);
  return Vec::scale2(p, n);
}

// x Φ(x). With t = |x| the upper tail Q(t) = e^(-t²/2) f(q) / (a + 2), where a = t / √2 and q = (a - 2) / (a + 2):
// f is smooth on the whole half-line, so that the left tail is as exact, relatively, as the rest.
inline T gelu_erf(T x) {
  x = Vec::max(Vec::set1(-14.5f), x);  // Q(14.5) is 0 in single precision
  T t = Vec::min(Vec::set1(14.5f), Vec::abs(x));
  T a = Vec::mul(t, Vec::set1(0.70710678f));
  T r = Vec::div(Vec::set1(1.0f), Vec::add(a, Vec::set1(2.0f)));
  T q = Vec::fnma(r, Vec::set1(4.0f), Vec::set1(1.0f));
  T f = horner(q, Vec::set1(3.454678881e-05f), 2.310412674e-05f, -2.962749277e-04f, -4.157070653e-04f,
               1.531390357e-03f, 3.237843048e-03f, -1.075289119e-02f, -1.822088100e-02f, 1.397358924e-01f,
               -3.435803354e-01f, 5.107913613e-01f);
  T square = Vec::mul(t, t);
  T lost = Vec::sub(Vec::set1(0.0f), Vec::fnma(t, t, square));  // t² is square + lost, exactly
  T e = exp_in_range(Vec::mul(square, Vec::set1(-0.5f)));
  e = Vec::fma(Vec::mul(e, Vec::set1(-0.5f)), lost, e);
  T tail = Vec::mul(Vec::mul(e, r), f);
  return Vec::mul(x, Vec::if_less(x, Vec::set1(0.0f), tail, Vec::sub(Vec::set1(1.0f), tail)));
}

inline T logistic_times(T x, T z) {  // x / (1 + e^-z)
  T y = Vec::div(x, Vec::add(Vec::set1(1.0f), exp(Vec::sub(Vec::set1(0.0f), z))));
  return Vec::if_less(z, Vec::set1(-88.0f), Vec::set1(-0.0f), y);  // and not infinity over infinity
}

inline T silu(T x) { return logistic_times(x, x); }

// x / 2 (1 + tanh u) = x / (1 + e^-2u), u = √(2/π) (x + 0.044715 x³)
inline T gelu_tanh(T x) {
  T inner = Vec::fma(Vec::mul(Vec::mul(x, x), x), Vec::set1(0.044715f), x);
  return logistic_times(x, Vec::mul(inner, Vec::set1(1.59576912f)));
}

inline T tanh(T x) {
  T t = Vec::abs(x), square = Vec::mul(t, t);
  T near = horner(square, Vec::set1(-5.716281943e-03f), 2.064993419e-02f, -5.374330655e-02f, 1.333148926e-01f,
                  -3.333328366e-01f);
  near = Vec::fma(Vec::mul(near, square), t, t);
  T e = exp(Vec::mul(t, Vec::set1(-2.0f)));
  T far = Vec::sub(Vec::set1(1.0f), Vec::div(Vec::add(e, e), Vec::add(Vec::set1(1.0f), e)));
  return Vec::copy_sign(Vec::if_less(t, Vec::set1(0.625f), near, far), x);
}

inline T relu(T x) { return Vec::max(Vec::set1(0.0f), x); }

// Lane by lane, in order: the same sum for every caller.
inline float reduce_add(T x) {
  float lanes[Vec::width];
  Vec::store(lanes, x);
  for (int half = Vec::width / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

inline float reduce_max(T x) {
  float lanes[Vec::width];
  Vec::store(lanes, x);
  float best = lanes[0];
  for (int i = 1; i < Vec::width; ++i) best = lanes[i] > best ? lanes[i] : best;
  return best;
}

template <T (*F)(T)>
inline void map(float* values, int count) {
  int i = 0;
  for (; i + Vec::width <= count; i += Vec::width) Vec::store(values + i, F(Vec::load(values + i)));
  if (i < count) Vec::store_part(values + i, F(Vec::load_part(values + i, count - i)), count - i);
}

inline void activate(Activation kind, float* values, int count) {
  switch (kind) {
    case Activation::none: return;
    case Activation::gelu_erf: return map<gelu_erf>(values, count);
    case Activation::gelu_tanh: return map<gelu_tanh>(values, count);
    case Activation::relu: return map<relu>(values, count);
    case Activation::silu: return map<silu>(values, count);
    case Activation::tanh: return map<tanh>(values, count);
  }
}

}  // namespace
}  // namespace forebay
