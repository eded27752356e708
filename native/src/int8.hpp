// Linear layers in int8. The depth is cut into groups of 128 values; in each, a weight row has a scale and an activation
// row a scale and a zero point of its own, found as it comes in. Sums within a group are whole numbers, and what is done
// to them is done in one order: every Dot, which says by which instructions they are made, gives the same bits.
#pragma once

namespace forebay {
namespace {

constexpr int kGroup = 128;
constexpr float kSmallest = 1e-30f;  // of a scale: what is smaller counts as 0

template <class Dot>
struct Int8 {
  using Ints = Vec::Ints;
  static constexpr int kTaken = Dot::taken;  // values that one product takes: 4 bytes of a row
  static constexpr int kSize = 4 / kTaken;   // bytes of a row's value
  static constexpr int kStep = kPanel * kTaken;  // bytes of a panel for one product

  static int groups(int in) { return (in + kGroup - 1) / kGroup; }
  static int steps(int values) { return (values + kTaken - 1) / kTaken; }
  static int values(int in, int group) { return in - group * kGroup < kGroup ? in - group * kGroup : kGroup; }

  // A row: for each group its scale and zero point, then the values.
  static long head_bytes(int in) { return round_up(groups(in) * 8, 64); }
  static long row_bytes(int in) { return head_bytes(in) + round_up(in * kSize, 64); }
  // A panel: for each group the scales of its columns, scale * sum of the weights, then the weights.
  static constexpr long kHead = 2 * kPanel * 4;
  static long panel_bytes(int in) {
    return groups(in) * kHead + (static_cast<long>(groups(in) - 1) * (kGroup / kTaken) +
                                 steps(values(in, groups(in) - 1))) * kStep;
  }

  static void convert(const float* src, int in, char* dst) {
    float* head = reinterpret_cast<float*>(dst);
    char* row = dst + head_bytes(in);
    for (int group = 0; group < groups(in); ++group)
      quantize(src + group * kGroup, values(in, group), head + 2 * group, row + group * kGroup * kSize);
  }

  static void quantize(const float* src, int count, float* head, char* row) {
    T low = Vec::set1(0.0f), high = low, fault = low;
    for (int i = 0; i < count; i += Vec::width) {
      const T x = Vec::load_part(src + i, count - i < Vec::width ? count - i : Vec::width);
      low = Vec::min(x, low), high = Vec::max(x, high);
      fault = Vec::add(fault, Vec::sub(x, x));  // NaN where x is no finite number
    }
    const float bottom = Vec::least(low), top = Vec::greatest(high);
    float scale = top * (1.0f / 255) - bottom * (1.0f / 255);
    if (scale < kSmallest) scale = 0.0f;
    const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    const T factor = Vec::set1(inverse), zero = Vec::round(Vec::set1(-bottom * inverse));
    for (int i = 0; i < count; i += Vec::width) {
      const T x = Vec::load_part(src + i, count - i < Vec::width ? count - i : Vec::width);
      Dot::store(row + i * kSize, Vec::to_ints(Vec::add(Vec::round(Vec::mul(x, factor)), zero)));
    }
    head[0] = scale + reduce_add(fault);
    head[1] = Vec::lane0(zero);
  }

  template <int R, int V>
  static void add_group(const LowTile& g, int group, const char* b, T (&y)[R][V]) {
    Ints acc[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) acc[r][v] = Vec::no_ints();
    const float* scales = reinterpret_cast<const float*>(b);
    const char* weights = b + kHead;
    const char* a = g.a + head_bytes(g.in) + group * kGroup * kSize;
    const char* ahead = g.ahead + (b - g.b) / 4;
    for (int k = steps(values(g.in, group)); k > 0; --k, weights += kStep, a += 4, ahead += kStep / 4) {
      __builtin_prefetch(ahead, 0, 2);
      Ints column[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) column[v] = Dot::column(weights + v * Vec::width * kTaken);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        int word;
        __builtin_memcpy(&word, a + r * g.a_stride, sizeof word);
        const Ints row = Vec::set1_ints(word);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) Dot::add(acc[r][v], row, column[v]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const float* head = reinterpret_cast<const float*>(g.a + r * g.a_stride) + 2 * group;
      const T scale = Vec::set1(head[0]), zero = Vec::set1(head[1]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        const T product = Vec::mul(Vec::to_floats(acc[r][v]), Vec::load(scales + v * Vec::width));
        y[r][v] = Vec::fma(scale, Vec::fnma(zero, Vec::load(scales + kPanel + v * Vec::width), product), y[r][v]);
      }
    }
  }

  template <int R, int V>
  static void tile(const LowTile& g) {
    T y[R][V];
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) y[r][v] = Vec::set1(0.0f);
    const char* b = g.b;
    for (int group = 0; group < groups(g.in); ++group, b += kHead + kGroup * kPanel) add_group<R, V>(g, group, b, y);
    put_rows<R, V>(g, y);
  }

  static void pack(const float* weight, int out, int in, float* packed) {
    char* b = reinterpret_cast<char*>(packed);
    for (int first = 0; first < out; first += kPanel)
      for (int group = 0; group < groups(in); ++group) {
        const int count = values(in, group);
        float* scales = reinterpret_cast<float*>(b);
        signed char* bytes = reinterpret_cast<signed char*>(b + kHead);
        __builtin_memset(b, 0, kHead + static_cast<long>(steps(count)) * kStep);
        for (int j = 0; j < kPanel && first + j < out; ++j) {
          const float* row = weight + static_cast<long>(first + j) * in + group * kGroup;
          scales[j] = quantize_weights(row, count, bytes + j * kTaken, scales + kPanel + j);
        }
        b += kHead + static_cast<long>(steps(count)) * kStep;
      }
  }

  // Bytes of one column, kStep apart a step; returns their scale and leaves scale * sum in `offset`.
  static float quantize_weights(const float* row, int count, signed char* bytes, float* offset) {
    float most = 0.0f;
    for (int k = 0; k < count; ++k) most = __builtin_fabsf(row[k]) > most ? __builtin_fabsf(row[k]) : most;
    const float scale = most / 127 < kSmallest ? 0.0f : most / 127;
    const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    int sum = 0;
    for (int k = 0; k < count; ++k) {
      const int q = static_cast<int>(__builtin_nearbyintf(row[k] * inverse));
      bytes[static_cast<long>(k / kTaken) * kStep + k % kTaken] = static_cast<signed char>(q);
      sum += q;
    }
    *offset = scale * static_cast<float>(sum);
    return scale;
  }
};

template <class Dot>
constexpr LinearKernel int8_kernel(const char* form) {
  return {form, low_packed_size<Int8<Dot>>, Int8<Dot>::pack, low_scratch<Int8<Dot>>, low_linear<Int8<Dot>>};
}

}  // namespace
}  // namespace forebay
