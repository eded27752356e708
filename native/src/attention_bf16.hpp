// Attention with products in bfloat16: as attention.hpp, but queries, keys, the softened scores and values are rounded
// before they are multiplied. Scores, their softening and all sums are floats. Built on the tiles of Bf16.
#pragma once

namespace forebay {
namespace {

inline __m512i widen(T x) { return _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x))); }

inline int count_at(int i, int size) { return size - i < Vec::width ? size - i : Vec::width; }

// How the scratch is cut, in bytes.
struct Bf16Room {
  long keys, values, queries, scores, shares, end;
  Bf16Room(int length, int size) {
    const long panels = round_up(length, kPanel) / kPanel, columns = round_up(size, kPanel) / kPanel;
    keys = 0;
    values = keys + panels * Bf16::panel_bytes(size);
    queries = values + columns * Bf16::panel_bytes(length);
    scores = queries + kTileRows * Bf16::row_bytes(size);
    shares = scores + kTileRows * panels * kPanel * 4;
    end = round_up(shares + kTileRows * Bf16::row_bytes(length), 64);
  }
};

long bf16_attention_scratch(int length, int size) { return Bf16Room(length, size).end / 4; }

// Keys as panels: a word holds two neighbouring values of one key. Missing keys are 0.
inline void pack_bf16_keys(const AttentionArgs& g, char* packed) {
  const int words = Bf16::steps(g.size);
  std::uint32_t* row = reinterpret_cast<std::uint32_t*>(reinterpret_cast<char*>(g.scratch) + Bf16Room(g.length, g.size).queries);
  for (int first = 0; first < g.length; first += kPanel, packed += Bf16::panel_bytes(g.size)) {
    std::uint32_t* panel = reinterpret_cast<std::uint32_t*>(packed);
    const int keys = g.length - first < kPanel ? g.length - first : kPanel;
    if (keys < kPanel) __builtin_memset(packed, 0, Bf16::panel_bytes(g.size));
    for (int j = 0; j < keys; ++j) {
      Bf16::convert(g.k + (first + j) * g.stride, g.size, reinterpret_cast<char*>(row));
      for (int i = 0; i < words; ++i) panel[i * kPanel + j] = row[i];
    }
  }
}

// Values as panels: a word holds the same column of two neighbouring keys.
inline void pack_bf16_values(const AttentionArgs& g, char* packed) {
  for (int first = 0; first < g.size; first += kPanel, packed += Bf16::panel_bytes(g.length))
    for (int j = 0; j < g.length; j += kPair) {
      const float* one = g.v + j * g.stride + first;
      char* words = packed + static_cast<long>(j / kPair) * kPanel * 4;
      for (int i = 0; first + i < g.size && i < kPanel; i += Vec::width) {
        const int count = count_at(first + i, g.size);
        const T other = j + 1 < g.length ? Vec::load_part(one + g.stride + i, count) : Vec::set1(0.0f);
        const __m512i low = widen(Vec::load_part(one + i, count)), high = _mm512_slli_epi32(widen(other), 16);
        _mm512_storeu_si512(words + i * 4, _mm512_or_si512(low, high));
      }
    }
}

void bf16_attention(const AttentionArgs& g) {
  const Bf16Room room(g.length, g.size);
  char* const scratch = reinterpret_cast<char*>(g.scratch);
  float* const scores = reinterpret_cast<float*>(scratch + room.scores);
  const long keys = round_up(g.length, kPanel);
  const long query_bytes = Bf16::row_bytes(g.size), share_bytes = Bf16::row_bytes(g.length);
  pack_bf16_keys(g, scratch + room.keys);
  pack_bf16_values(g, scratch + room.values);
  const int height = even_height(g.length);
  for (int row = 0; row < g.length; row += height) {
    const int rows = g.length - row < height ? g.length - row : height;
    for (int r = 0; r < rows; ++r)
      Bf16::convert(g.q + (row + r) * g.stride, g.size, scratch + room.queries + r * query_bytes);
    const char* panel = scratch + room.keys;
    for (int first = 0; first < g.length; first += kPanel, panel += Bf16::panel_bytes(g.size)) {
      const Cut cut(g.length - first < kPanel ? g.length - first : kPanel);
      find_low<Bf16>(rows, cut.vecs)({scratch + room.queries, query_bytes, panel, g.size, panel,
                                      {nullptr, nullptr, scores + first, Vec::width}, 0, keys});
    }
    float factors[kTileRows];
    for (int r = 0; r < rows; ++r) {
      float* own = scores + r * keys;
      if (g.bias) add_bias(own, g.length, g.scale, g.bias + (row + r) * g.bias_stride);
      factors[r] = soften(own, g.length, g.bias ? 1.0f : g.scale);
      Bf16::convert(own, g.length, scratch + room.shares + r * share_bytes);
    }
    float* dst = g.dst + row * g.dst_stride;
    panel = scratch + room.values;
    for (int first = 0; first < g.size; first += kPanel, panel += Bf16::panel_bytes(g.length)) {
      const Cut cut(g.size - first < kPanel ? g.size - first : kPanel);
      find_low<Bf16>(rows, cut.vecs)({scratch + room.shares, share_bytes, panel, g.length, panel,
                                      {nullptr, nullptr, dst + first, cut.last}, 0, g.dst_stride});
    }
    for (int r = 0; r < rows; ++r) scale_row(dst + r * g.dst_stride, g.size, factors[r]);
  }
}

}  // namespace
}  // namespace forebay
