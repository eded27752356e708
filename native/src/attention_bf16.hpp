// Attention's format in bfloat16: queries, keys, the softened scores and values are rounded before they are multiplied.
// Scores, their softening and all sums are floats. Built on the tiles of Bf16.
#pragma once

namespace forebay {
namespace {

inline __m512i widen(T x) { return _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x))); }

struct Bf16Rows {
  static long key_bytes(int keys, int size) { return round_up(keys, kPanel) / kPanel * Bf16::panel_bytes(size); }
  static long value_bytes(int keys, int size) { return round_up(size, kPanel) / kPanel * Bf16::panel_bytes(keys); }
  static long row_bytes(int keys, int size) { return kTileRows * Bf16::row_bytes(keys > size ? keys : size); }

  // Keys as panels: a word holds two neighbouring values of one key. Missing keys are 0.
  static void pack_keys(const AttentionArgs& g, int start, int count, char* packed, char* room) {
    const int words = Bf16::steps(g.size);
    std::uint32_t* const row = reinterpret_cast<std::uint32_t*>(room);
    for (int first = 0; first < count; first += kPanel, packed += Bf16::panel_bytes(g.size)) {
      std::uint32_t* const panel = reinterpret_cast<std::uint32_t*>(packed);
      const int keys = count - first < kPanel ? count - first : kPanel;
      if (keys < kPanel) __builtin_memset(packed, 0, Bf16::panel_bytes(g.size));
      for (int j = 0; j < keys; ++j) {
        Bf16::convert(token_row(g, g.k, start + first + j), g.size, room);
        for (int i = 0; i < words; ++i) panel[i * kPanel + j] = row[i];
      }
    }
  }

  // Values as panels: a word holds the same column of two neighbouring keys.
  static void pack_values(const AttentionArgs& g, int start, int count, char* packed) {
    const long panel = Bf16::panel_bytes(tile_keys(g.size));
    for (int j = 0; j < count; j += kPair) {
      const float* const one = token_row(g, g.v, start + j);
      const float* const other = j + 1 < count ? token_row(g, g.v, start + j + 1) : nullptr;
      char* words = packed + static_cast<long>(j / kPair) * kPanel * 4;
      for (int first = 0; first < g.size; first += kPanel, words += panel)
        for (int i = first; i < g.size && i < first + kPanel; i += Vec::width) {
          const int part = g.size - i < Vec::width ? g.size - i : Vec::width;
          const T next = other ? Vec::load_part(other + i, part) : Vec::set1(0.0f);
          const __m512i low = widen(Vec::load_part(one + i, part)), high = _mm512_slli_epi32(widen(next), 16);
          _mm512_storeu_si512(words + (i - first) * 4, _mm512_or_si512(low, high));
        }
    }
  }

  static void score(const AttentionArgs& g, const float* q, int rows, const Span& span, const char* packed, char* room,
                    float* scores, long stride) {
    const long bytes = Bf16::row_bytes(g.size);
    for (int r = 0; r < rows; ++r) Bf16::convert(q + r * g.q_stride, g.size, room + r * bytes);
    const char* panel = packed + span.low / kPanel * Bf16::panel_bytes(g.size);
    for (int first = span.low; first < span.high; first += kPanel, panel += Bf16::panel_bytes(g.size)) {
      const Cut cut(span.high - first < kPanel ? span.high - first : kPanel);
      find_low<Bf16, 1>(rows, cut.vecs)(
          {room, bytes, panel, g.size, panel, {nullptr, nullptr, scores + first, Vec::width}, 0, stride});
    }
  }

  static void mix(const AttentionArgs& g, const float* scores, long stride, int rows, const Span& span, const char* values,
                  char* room, float* dst, bool goes_on) {
    const int count = span.high - span.low;
    const long bytes = Bf16::row_bytes(count);
    for (int r = 0; r < rows; ++r) Bf16::convert(scores + r * stride + span.low, count, room + r * bytes);
    const char* panel = values + span.low / kPair * static_cast<long>(kPanel) * 4;
    for (int first = 0; first < g.size; first += kPanel, panel += Bf16::panel_bytes(tile_keys(g.size))) {
      const Cut cut(g.size - first < kPanel ? g.size - first : kPanel);
      find_low<Bf16, 1>(rows, cut.vecs)({room, bytes, panel, count, panel,
                                      {nullptr, goes_on ? dst + first : nullptr, dst + first, cut.last},
                                      g.dst_stride, g.dst_stride});
    }
  }
};

}  // namespace
}  // namespace forebay
