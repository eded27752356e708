// Layer normalisation and row sums.
#pragma once

namespace forebay {
namespace {

// Calls f(column, vector of src, how many of its columns count); the vector's other columns are 0.
template <class F>
inline void over_columns(const float* src, int width, F&& f) {
  int i = 0;
  for (; i + Vec::width <= width; i += Vec::width) f(i, Vec::load(src + i), Vec::width);
  if (i < width) f(i, Vec::load_part(src + i, width - i), width - i);
}

void layer_norm(const LayerNormArgs& g) {
  for (int row = 0; row < g.rows; ++row) {
    const float* src = g.src + static_cast<long>(row) * g.width;
    float* dst = g.dst + static_cast<long>(row) * g.width;
    T sum = Vec::set1(0.0f);
    over_columns(src, g.width, [&](int, T x, int) { sum = Vec::add(sum, x); });
    const T mean = Vec::set1(reduce_add(sum) / static_cast<float>(g.width));
    T squares = Vec::set1(0.0f);  // of the distances from the mean: exact where the mean is large
    over_columns(src, g.width, [&](int, T x, int count) {
      T distance = Vec::sub(x, mean);
      if (count < Vec::width) distance = Vec::keep_first(distance, count, Vec::set1(0.0f));
      squares = Vec::fma(distance, distance, squares);
    });
    const float variance = reduce_add(squares) / static_cast<float>(g.width);
    const T factor = Vec::set1(1.0f / __builtin_sqrtf(variance + g.eps));
    over_columns(src, g.width, [&](int i, T x, int count) {
      T y = Vec::mul(Vec::sub(x, mean), factor);
      y = Vec::fma(y, Vec::load_part(g.weight + i, count), Vec::load_part(g.bias + i, count));
      Vec::store_part(dst + i, y, count);
    });
  }
}

void add(const float* src, float* dst, int count) {
  over_columns(src, count, [&](int i, T x, int part) {
    Vec::store_part(dst + i, Vec::add(Vec::load_part(dst + i, part), x), part);
  });
}

}  // namespace
}  // namespace forebay
