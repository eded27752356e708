// Attention of one sequence and one head: six queries against all keys at a time, so that the scores of a tile stay in
// the first-level cache and no [length, length] matrix is made. A query's result does not depend on its tile.
#pragma once

namespace forebay {
namespace {

inline long padded_keys(int length) { return round_up(length, kPanel); }
inline long padded_size(int size) { return round_up(size, Vec::width < 16 ? 16 : Vec::width); }

long attention_scratch(int length, int size) {
  return padded_keys(length) * size + length * padded_size(size) + kTileRows * padded_keys(length) + kPanel;
}

// Keys as panels [size, kPanel] of a packed weight, the missing ones 0.
inline void pack_keys(const AttentionArgs& g, float* packed) {
  for (int first = 0; first < g.length; first += kPanel, packed += static_cast<long>(g.size) * kPanel) {
    const int keys = g.length - first < kPanel ? g.length - first : kPanel;
    const float* k = g.k + first * g.stride;
    for (int i = 0; i < g.size; ++i) {
      float* row = packed + static_cast<long>(i) * kPanel;
      for (int j = 0; j < keys; ++j) row[j] = k[j * g.stride + i];
      for (int j = keys; j < kPanel; ++j) row[j] = 0.0f;
    }
  }
}

inline void copy_values(const AttentionArgs& g, float* values) {
  const long width = padded_size(g.size);
  for (int j = 0; j < g.length; ++j, values += width) {
    const float* v = g.v + j * g.stride;
    int i = 0;
    for (; i + Vec::width <= g.size; i += Vec::width) Vec::store(values + i, Vec::load(v + i));
    for (; i < width; ++i) values[i] = i < g.size ? v[i] : 0.0f;
  }
}

// scores → e^(scale * score + bias - max), in place; returns the reciprocal of their sum.
inline float soften(float* scores, int length, float scale, const float* bias) {
  const int whole = length / Vec::width * Vec::width, rest = length - whole;
  const T factor = Vec::set1(scale), lowest = Vec::set1(-__builtin_inff());
  T best = lowest;
  for (int j = 0; j < length; j += Vec::width) {
    T s = Vec::mul(Vec::load(scores + j), factor);
    if (bias) s = Vec::add(s, j < whole ? Vec::load(bias + j) : Vec::load_part(bias + j, rest));
    if (j == whole) s = Vec::keep_first(s, rest, lowest);
    Vec::store(scores + j, s);
    best = Vec::max(best, s);
  }
  const T top = Vec::set1(reduce_max(best));
  T sum = Vec::set1(0.0f);
  for (int j = 0; j < length; j += Vec::width) {
    T e = exp(Vec::sub(Vec::load(scores + j), top));
    Vec::store(scores + j, e);
    sum = Vec::add(sum, e);
  }
  return 1.0f / reduce_add(sum);
}

inline void scale_row(float* row, int size, float factor) {
  int i = 0;
  const T f = Vec::set1(factor);
  for (; i + Vec::width <= size; i += Vec::width) Vec::store(row + i, Vec::mul(Vec::load(row + i), f));
  if (i < size) Vec::store_part(row + i, Vec::mul(Vec::load_part(row + i, size - i), f), size - i);
}

void attention(const AttentionArgs& g) {
  const long keys = padded_keys(g.length), width = padded_size(g.size);
  float* packed = g.scratch;
  float* values = packed + keys * g.size;
  float* scores = values + g.length * width;
  pack_keys(g, packed);
  copy_values(g, values);
  const int height = even_height(g.length);
  for (int row = 0; row < g.length; row += height) {
    const int rows = g.length - row < height ? g.length - row : height;
    for (int first = 0; first < g.length; first += kPanel) {
      // Whole vectors are written: the row has room for them, and what lies past the end is masked below.
      const Cut cut(g.length - first < kPanel ? g.length - first : kPanel);
      find_tile(rows, cut.vecs)({g.q + row * g.stride, g.stride, packed + static_cast<long>(first) * g.size, kPanel,
                                 g.size, nullptr, nullptr, 0, scores + first, keys, Vec::width});
    }
    float shares[kTileRows];
    for (int r = 0; r < rows; ++r)
      shares[r] = soften(scores + r * keys, g.length, g.scale, g.bias ? g.bias + (row + r) * g.bias_stride : nullptr);
    float* dst = g.dst + row * g.dst_stride;
    for (int first = 0; first < g.size; first += kPanel) {
      const Cut cut(g.size - first < kPanel ? g.size - first : kPanel);
      find_tile(rows, cut.vecs)({scores, keys, values + first, width, g.length, nullptr, nullptr, 0, dst + first,
                                 g.dst_stride, cut.last});
    }
    for (int r = 0; r < rows; ++r) scale_row(dst + r * g.dst_stride, g.size, shares[r]);
  }
}

}  // namespace
}  // namespace forebay
