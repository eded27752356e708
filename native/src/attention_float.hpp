// Attention's format in floats, built on the tiles of the matrix product.
#pragma once

namespace forebay {
namespace {

struct FloatRows {
  static long value_width(int size) { return round_up(size, Vec::width < 16 ? 16 : Vec::width); }
  // The last panel of values is read in whole vectors, beyond its rows.
  static long key_bytes(int keys, int size) { return round_up(keys, kPanel) * size * 4; }
  static long value_bytes(int keys, int size) { return (keys * value_width(size) + kPanel) * 4; }
  static long row_bytes(int, int) { return 0; }

  // Keys as panels [size, kPanel] of a packed weight, the missing ones 0.
  static void pack_keys(const AttentionArgs& g, int start, int count, char* room, char*) {
    float* packed = reinterpret_cast<float*>(room);
    for (int first = 0; first < count; first += kPanel, packed += static_cast<long>(g.size) * kPanel) {
      const int keys = count - first < kPanel ? count - first : kPanel;
      for (int j = 0; j < keys; ++j) {
        const float* k = token_row(g, g.k, start + first + j);
        for (int i = 0; i < g.size; ++i) packed[i * kPanel + j] = k[i];
      }
      for (int j = keys; j < kPanel; ++j)
        for (int i = 0; i < g.size; ++i) packed[i * kPanel + j] = 0.0f;
    }
  }

  static void pack_values(const AttentionArgs& g, int start, int count, char* room) {
    const long width = value_width(g.size);
    float* values = reinterpret_cast<float*>(room);
    for (int j = 0; j < count; ++j, values += width) {
      const float* v = token_row(g, g.v, start + j);
      int i = 0;
      for (; i + Vec::width <= g.size; i += Vec::width) Vec::store(values + i, Vec::load(v + i));
      for (; i < width; ++i) values[i] = i < g.size ? v[i] : 0.0f;
    }
  }

  static void score(const AttentionArgs& g, const float* q, int rows, const Span& span, const char* room, char*,
                    float* scores, long stride) {
    const float* const packed = reinterpret_cast<const float*>(room);
    for (int first = span.low; first < span.high; first += kPanel) {
      // Whole vectors are written: the row has room for them, and what lies past the end is masked later.
      const Cut cut(span.high - first < kPanel ? span.high - first : kPanel);
      find_tile(rows, cut.vecs)({q, g.q_stride, packed + static_cast<long>(first) * g.size, kPanel, g.size, packed, nullptr,
                                 nullptr, 0, scores + first, stride, Vec::width});
    }
  }

  static void mix(const AttentionArgs& g, const float* scores, long stride, int rows, const Span& span, const char* room,
                  char*, float* dst, bool goes_on) {
    const long width = value_width(g.size);
    const float* const values = reinterpret_cast<const float*>(room) + span.low * width;
    for (int first = 0; first < g.size; first += kPanel) {
      const Cut cut(g.size - first < kPanel ? g.size - first : kPanel);
      find_tile(rows, cut.vecs)({scores + span.low, stride, values + first, width, span.high - span.low, values, nullptr,
                                 goes_on ? dst + first : nullptr, g.dst_stride, dst + first, g.dst_stride, cut.last});
    }
  }
};

[[maybe_unused]] constexpr AttentionKernel kFloatAttention{Precision::float32, attention_scratch<FloatRows>,
                                                           attention<FloatRows>};

}  // namespace
}  // namespace forebay
