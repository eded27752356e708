// Attention over tiles of keys: a tile's keys and values are packed once for all queries and heads that share them, and
// six queries at a time meet it. A query's largest score and its sum go on from tile to tile, so that nothing longer
// than a tile is stored. Tiles begin at multiples of their size from the text's first token, and what a query does not
// see counts as exactly 0: its result depends neither on which queries are computed with it nor on where keys are kept.
// A Format says how rows are packed and multiplied.
#pragma once

namespace forebay {
namespace {

constexpr float kInfinity = __builtin_inff();

// Keys of a tile: 128 KB of keys and as much of values stay in the second-level cache.
inline int tile_keys(int size) {
  const int keys = 32768 / size / 64 * 64;
  return keys < 64 ? 64 : keys > 512 ? 512 : keys;
}

inline const float* token_row(const AttentionArgs& g, const TokenRows& rows, int token) {
  return token < g.before ? rows.kept + g.slots[token] * rows.kept_stride : rows.own + (token - g.before) * rows.stride;
}

// The keys that a query sees: [seen_from, seen_to).
inline int seen_from(const AttentionArgs& g, int query) {
  return g.window && query >= g.window ? query - g.window + 1 : 0;
}
inline int seen_to(const AttentionArgs& g, int query) {
  const int end = g.is_causal ? query + 1 : g.window ? query + g.window : g.keys;
  return end < g.keys ? end : g.keys;
}

// What is known of a query after some tiles.
struct Softmax {
  float top, sum;
};

// Where the parts of the scratch begin, in bytes.
template <class Format>
struct Room {
  long keys, values, rows, scores, states, end;
  Room(int size, int queries) {
    const int tile = tile_keys(size);
    keys = 0;
    values = keys + round_up(Format::key_bytes(tile, size), 64);
    rows = values + round_up(Format::value_bytes(tile, size), 64);
    scores = rows + round_up(Format::row_bytes(tile, size), 64);
    states = scores + static_cast<long>(kTileRows) * round_up(tile, kPanel) * 4;
    end = round_up(states + static_cast<long>(queries) * static_cast<long>(sizeof(Softmax)), 64);
  }
};

template <class Format>
long attention_scratch(int size, int queries) {
  return Room<Format>(size, queries).end / 4;
}

// score → scale * score + bias, in place.
inline void add_bias(float* scores, int count, float scale, const float* bias) {
  const T factor = Vec::set1(scale);
  for (int j = 0; j < count; j += Vec::width) {
    const int part = count - j < Vec::width ? count - j : Vec::width;
    Vec::store(scores + j, Vec::fma(Vec::load(scores + j), factor, Vec::load_part(bias + j, part)));
  }
}

// score → cap tanh(scale * score / cap), in place.
inline void cap_scores(float* scores, int count, float scale, float cap) {
  const T factor = Vec::set1(scale), inverse = Vec::set1(cap), limit = Vec::set1(cap);
  for (int j = 0; j < count; j += Vec::width)
    Vec::store(scores + j, Vec::mul(tanh(Vec::div(Vec::mul(Vec::load(scores + j), factor), inverse)), limit));
}

// score → e^(scale * (score - top)), in place, for whole vectors; returns what the sums before are worth now.
inline float soften(float* scores, int count, float scale, Softmax& state) {
  T best = Vec::set1(-kInfinity);
  for (int j = 0; j < count; j += Vec::width) best = Vec::max(best, Vec::load(scores + j));
  const float found = reduce_max(best), before = state.top;
  if (found > before) state.top = found;
  const T from = Vec::set1(state.top > -kInfinity ? state.top : 0.0f), factor = Vec::set1(scale * 1.44269504f);
  T sum = Vec::set1(0.0f);
  for (int j = 0; j < count; j += Vec::width) {
    const T e = exp2_of_negative(Vec::mul(Vec::sub(Vec::load(scores + j), from), factor));
    Vec::store(scores + j, e);
    sum = Vec::add(sum, e);
  }
  float kept[Vec::width];
  Vec::store(kept, exp2_of_negative(Vec::mul(Vec::sub(Vec::set1(before), from), factor)));
  state.sum = state.sum * kept[0] + reduce_add(sum);
  return kept[0];
}

inline void scale_row(float* row, int size, float factor) {
  int i = 0;
  const T f = Vec::set1(factor);
  for (; i + Vec::width <= size; i += Vec::width) Vec::store(row + i, Vec::mul(Vec::load(row + i), f));
  if (i < size) Vec::store_part(row + i, Vec::mul(Vec::load_part(row + i, size - i), f), size - i);
}

// Keys of a tile that queries are multiplied with, from the tile's first on: `low` begins a panel.
struct Span {
  int tile, low, high;
};

// Scores of one query over a span → weights; returns what the sums before are worth now.
inline float weigh(const AttentionArgs& g, int head, int query, const Span& span, float* scores, Softmax& state) {
  float* const own = scores + span.low;
  const int count = span.high - span.low, start = span.tile + span.low;
  float scale = g.scale;
  if (g.soft_cap > 0) cap_scores(own, count, scale, g.soft_cap), scale = 1.0f;
  if (g.bias) add_bias(own, count, scale, g.bias + head * g.bias_head + query * g.bias_stride + start), scale = 1.0f;
  const int from = seen_from(g, query) - start, to = seen_to(g, query) - start;
  for (int j = 0; j < from && j < count; ++j) own[j] = -kInfinity;
  for (int j = to > 0 ? to : 0, end = static_cast<int>(round_up(count, Vec::width)); j < end; ++j) own[j] = -kInfinity;
  return soften(own, count, scale, state);
}

// Some queries of a head, `row` the first, meet a tile.
template <class Format>
inline void meet(const AttentionArgs& g, const Room<Format>& room, int head, int row, int rows, int tile) {
  const int query = g.first + row, from = seen_from(g, query), to = seen_to(g, query + rows - 1);
  const int count = tile_keys(g.size);
  const Span span{tile, from > tile ? (from - tile) / kPanel * kPanel : 0, to - tile < count ? to - tile : count};
  if (span.high <= span.low) return;
  char* const scratch = reinterpret_cast<char*>(g.scratch);
  float* const scores = reinterpret_cast<float*>(scratch + room.scores);
  const long stride = round_up(count, kPanel);
  Softmax* const states = reinterpret_cast<Softmax*>(scratch + room.states) + static_cast<long>(head) * g.rows + row;
  float* const dst = g.dst + head * g.dst_head + row * g.dst_stride;
  Format::score(g, g.q + head * g.q_head + row * g.q_stride, rows, span, scratch + room.keys, scratch + room.rows, scores,
                stride);
  const bool is_first = tile <= from;
  for (int r = 0; r < rows; ++r) {
    const float kept = weigh(g, head, query + r, span, scores + r * stride, states[r]);
    if (!is_first) scale_row(dst + r * g.dst_stride, g.size, kept);
  }
  Format::mix(g, scores, stride, rows, span, scratch + room.values, scratch + room.rows, dst, !is_first);
}

template <class Format>
void attention(const AttentionArgs& g) {
  if (g.rows == 0) return;
  const Room<Format> room(g.size, g.heads * g.rows);
  char* const scratch = reinterpret_cast<char*>(g.scratch);
  Softmax* const states = reinterpret_cast<Softmax*>(scratch + room.states);
  for (int i = 0; i < g.heads * g.rows; ++i) states[i] = {-kInfinity, 0.0f};
  const int height = even_height(g.rows), tile = tile_keys(g.size), end = seen_to(g, g.first + g.rows - 1);
  for (int start = seen_from(g, g.first) / tile * tile; start < end; start += tile) {
    const int count = end - start < tile ? end - start : tile;
    Format::pack_keys(g, start, count, scratch + room.keys, scratch + room.rows);
    Format::pack_values(g, start, count, scratch + room.values);
    for (int head = 0; head < g.heads; ++head)
      for (int row = 0; row < g.rows; row += height)
        meet(g, room, head, row, g.rows - row < height ? g.rows - row : height, start);
  }
  for (int head = 0; head < g.heads; ++head)
    for (int row = 0; row < g.rows; ++row) {
      float* const dst = g.dst + head * g.dst_head + row * g.dst_stride;
      const float sum = states[static_cast<long>(head) * g.rows + row].sum;
      if (sum == 0.0f)  // it sees nothing
        __builtin_memset(dst, 0, g.size * sizeof(float));
      else
        scale_row(dst, g.size, 1.0f / sum);
    }
}

}  // namespace
}  // namespace forebay
