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
    for (int j = 0; j < keys; ++j)
      for (int i = 0; i < g.size; ++i) packed[i * kPanel + j] = k[j * g.stride + i];
    for (int j = keys; j < kPanel; ++j)
      for (int i = 0; i < g.size; ++i) packed[i * kPanel + j] = 0.0f;
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

// score → scale * score + bias, in place.
inline void add_bias(float* scores, int length, float scale, const float* bias) {
  const T factor = Vec::set1(scale);
  for (int j = 0; j < length; j += Vec::width) {
    const int count = length - j < Vec::width ? length - j : Vec::width;
    Vec::store(scores + j, Vec::fma(Vec::load(scores + j), factor, Vec::load_part(bias + j, count)));
  }
}

// score → e^(scale * (score - max)), in place; returns the reciprocal of their sum.
inline float soften(float* scores, int length, float scale) {
  const int whole = length / Vec::width * Vec::width, rest = length - whole;
  T best = Vec::set1(-__builtin_inff());
  if (rest) {
    const T s = Vec::keep_first(Vec::load(scores + whole), rest, best);
    Vec::store(scores + whole, s);
    best = s;
  }
  for (int j = 0; j < whole; j += Vec::width) best = Vec::max(best, Vec::load(scores + j));
  const T top = Vec::set1(reduce_max(best)), factor = Vec::set1(scale * 1.44269504f);
  T sum = Vec::set1(0.0f);
  for (int j = 0; j < length; j += Vec::width) {
    const T e = exp2_of_negative(Vec::mul(Vec::sub(Vec::load(scores + j), top), factor));
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
                                 g.size, packed, nullptr, nullptr, 0, scores + first, keys, Vec::width});
    }
    float shares[kTileRows];
    for (int r = 0; r < rows; ++r) {
      float* own = scores + r * keys;
      if (g.bias) add_bias(own, g.length, g.scale, g.bias + (row + r) * g.bias_stride);
      shares[r] = soften(own, g.length, g.bias ? 1.0f : g.scale);
    }
    float* dst = g.dst + row * g.dst_stride;
    for (int first = 0; first < g.size; first += kPanel) {
      const Cut cut(g.size - first < kPanel ? g.size - first : kPanel);
      find_tile(rows, cut.vecs)({scores, keys, values + first, width, g.length, values, nullptr, nullptr, 0, dst + first,
                                 g.dst_stride, cut.last});
    }
    for (int r = 0; r < rows; ++r) scale_row(dst + r * g.dst_stride, g.size, shares[r]);
  }
}

[[maybe_unused]] constexpr AttentionKernel kFloatAttention{attention_scratch, attention};

}  // namespace
}  // namespace forebay
