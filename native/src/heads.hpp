// What happens to rows beside products and norms: heads that are normalised and rotated, gates.
#pragma once

namespace forebay {
namespace {

inline void rotate(float* head, const float* cosines, const float* sines, int half) {
  for (int i = 0; i < half; i += Vec::width) {
    const int part = half - i < Vec::width ? half - i : Vec::width;
    const T cosine = Vec::load_part(cosines + i, part), sine = Vec::load_part(sines + i, part);
    const T first = Vec::load_part(head + i, part), second = Vec::load_part(head + half + i, part);
    Vec::store_part(head + i, Vec::sub(Vec::mul(first, cosine), Vec::mul(second, sine)), part);
    Vec::store_part(head + half + i, Vec::add(Vec::mul(second, cosine), Vec::mul(first, sine)), part);
  }
}

void turn(const TurnArgs& g) {
  for (int row = 0; row < g.rows; ++row) {
    float* head = g.head + row * g.stride;
    const float* angles = g.table ? g.table + g.positions[row] * 2 * g.half : nullptr;
    for (int i = 0; i < g.heads; ++i, head += g.step) {
      if (g.weight) rms_norm({head, head, nullptr, 1, g.size, g.weight, nullptr, g.eps});
      if (angles) rotate(head, angles, angles + g.half, g.half);
    }
  }
}

void gate(const GateArgs& g) {
  for (int row = 0; row < g.rows; ++row) {
    const float* src = g.src + static_cast<long>(row) * 2 * g.width;
    float* dst = g.dst + static_cast<long>(row) * g.width;
    __builtin_memcpy(dst, src, g.width * sizeof(float));
    activate(g.activation, dst, g.width);
    over_columns(src + g.width, g.width, [&](int i, T x, int part) {
      Vec::store_part(dst + i, Vec::mul(Vec::load_part(dst + i, part), x), part);
    });
  }
}

}  // namespace
}  // namespace forebay
