// Normalisation of rows, and row sums.
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

// dst = y * weight [+ bias] [+ residual], y the normalised columns.
inline void put_normed(const NormArgs& g, int row, int i, T y, int part) {
  const long at = static_cast<long>(row) * g.width + i;
  const T weight = Vec::load_part(g.weight + i, part);
  y = g.bias ? Vec::fma(y, weight, Vec::load_part(g.bias + i, part)) : Vec::mul(y, weight);
  if (g.residual) y = Vec::add(y, Vec::load_part(g.residual + at, part));
  Vec::store_part(g.dst + at, y, part);
}

void layer_norm(const NormArgs& g) {
  for (int row = 0; row < g.rows; ++row) {
    const float* src = g.src + static_cast<long>(row) * g.width;
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
      put_normed(g, row, i, Vec::mul(Vec::sub(x, mean), factor), count);
    });
  }
}

void rms_norm(const NormArgs& g) {
  for (int row = 0; row < g.rows; ++row) {
    const float* src = g.src + static_cast<long>(row) * g.width;
    T squares = Vec::set1(0.0f);
    over_columns(src, g.width, [&](int, T x, int) { squares = Vec::fma(x, x, squares); });
    const float mean = reduce_add(squares) / static_cast<float>(g.width);
    const T factor = Vec::set1(1.0f / __builtin_sqrtf(mean + g.eps));
    over_columns(src, g.width, [&](int i, T x, int count) { put_normed(g, row, i, Vec::mul(x, factor), count); });
  }
}

void add(const float* src, float* dst, int count) {
  over_columns(src, count, [&](int i, T x, int part) {
    Vec::store_part(dst + i, Vec::add(Vec::load_part(dst + i, part), x), part);
  });
}

}  // namespace
}  // namespace forebay
