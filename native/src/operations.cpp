// What each operation of a program does to some rows of a group.
#include <cstring>

#include "program.hpp"

namespace forebay {

namespace {
// A row in bfloat16, as it is or added: its bits are the upper half of a float's.
void add_halves(const std::uint16_t* src, float* dst, int width, bool is_first) {
  for (int i = 0; i < width; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(src[i]) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    dst[i] = is_first ? value : dst[i] + value;
  }
}
}  // namespace

float* Program::rows_of(int slot, const Place& place, long first) const {
  if (slot < 0) return nullptr;
  if (!slots_[slot].is_global)
    return place.local + offsets_[slot] * kBlockRows + (first - place.local_row) * slots_[slot].width;
  return place.global + offsets_[slot] * place.group.rows + first * slots_[slot].width;
}

void Program::run_op(const Step& step, const Op& op, const Place& place, long first, int rows) const {
  float* const src = rows_of(op.src, place, first);
  float* const dst = rows_of(op.dst, place, first);
  const float* const residual = rows_of(op.residual, place, first);
  const long batch_row = place.group.first_row + first;
  switch (op.kind) {
    case Op::Kind::embed: return embed(step, op, dst, batch_row, rows);
    case Op::Kind::linear: {
      const PackedLinear& l = *op.linear;
      return l.kernel->run({src, l.in, l.weight.data(), l.bias.data(), residual, l.out, dst, l.out, rows, l.in, l.out,
                            op.activation, place.scratch});
    }
    case Op::Kind::layer_norm:
    case Op::Kind::rms_norm: {
      const auto norm = op.kind == Op::Kind::rms_norm ? kernels_.rms_norm : kernels_.layer_norm;
      return norm({src, dst, residual, rows, slots_[op.src].width, op.weight.data(), op.bias.data(), op.eps});
    }
    case Op::Kind::turn: return turn(step, op, place, first, rows);
    case Op::Kind::keep: return keep(step, op, place, first, rows);
    case Op::Kind::gate: return kernels_.gate({src, dst, rows, slots_[op.dst].width, op.activation});
    case Op::Kind::show: {
      if (!step.every_state && op.state + 1 < num_states_) return;
      const long width = slots_[op.src].width, plane = step.every_state ? op.state : 0;
      std::memcpy(step.out + (plane * step.tokens() + batch_row) * width, src, rows * width * sizeof(float));
      return;
    }
    case Op::Kind::attention: return;  // has its own stretch
  }
}

void Program::embed(const Step& step, const Op& op, float* dst, long batch_row, int rows) const {
  const int width = slots_[op.dst].width;
  for (int row = 0; row < rows; ++row, dst += width) {
    for (const Table& table : op.tables) {
      const std::int64_t* source = step.sources[static_cast<int>(table.source)];
      const long at = (source ? source[batch_row + row] : 0) * width;
      const bool is_first = &table == op.tables.data();
      if (table.halves)
        add_halves(table.halves + at, dst, width, is_first);
      else if (is_first)
        std::memcpy(dst, table.rows + at, width * sizeof(float));
      else
        kernels_.add(table.rows + at, dst, width);
    }
    if (op.factor != 1.0f)
      for (int i = 0; i < width; ++i) dst[i] *= op.factor;
  }
}

void Program::turn(const Step& step, const Op& op, const Place& place, long first, int rows) const {
  const Heads& heads = op.attention.heads;
  const Angles none{nullptr, nullptr, 0}, &angles = op.angles < 0 ? none : step.angles[op.angles];
  const std::int64_t* const positions = angles.rows ? angles.rows + place.group.first_row + first : nullptr;
  float* const row = rows_of(op.src, place, first);
  const float* const weight = op.weight.size() ? op.weight.data() : nullptr;
  kernels_.turn({row + heads.query(), slots_[op.src].width, rows, heads.count, heads.step(), heads.size, weight, op.eps,
                 angles.table, positions, angles.half});
  kernels_.turn({row + heads.key(), slots_[op.src].width, rows, heads.kv_count, heads.step(), heads.size,
                 weight ? weight + heads.size : nullptr, op.eps, angles.table, positions, angles.half});
}

void Program::keep(const Step& step, const Op& op, const Place& place, long first, int rows) const {
  if (!step.kept) return;
  const Kept& kept = *step.kept;
  const Heads& heads = op.attention.heads;
  const std::int64_t* const slots = kept.slots + place.group.first_row + first;
  const float* row = rows_of(op.src, place, first);
  for (int r = 0; r < rows; ++r, row += slots_[op.src].width) {
    const long at = op.attention.layer * kept.layer_stride + slots[r] * kept.width;
    for (int head = 0; head < heads.kv_count; ++head) {
      const long part = head * heads.size, src = head * heads.step();
      std::memcpy(kept.keys + at + part, row + heads.key() + src, heads.size * sizeof(float));
      std::memcpy(kept.values + at + part, row + heads.value() + src, heads.size * sizeof(float));
    }
  }
}

void Program::attend(const Step& step, const Op& op, const Place& place, const Part& part, int kv_head) const {
  const Attention& a = op.attention;
  const Heads& heads = a.heads;
  const int group = heads.count / heads.kv_count, head = kv_head * group;
  const long stride = slots_[op.src].width, width = slots_[op.dst].width;
  const long row = step.borders[part.seq] - place.group.first_row;
  const float* const src = rows_of(op.src, place, row);
  float* const dst = rows_of(op.dst, place, row + part.first);
  const long shift = static_cast<long>(kv_head) * heads.step();
  TokenRows keys{src + heads.key() + shift, stride, nullptr, 0}, values{src + heads.value() + shift, stride, nullptr, 0};
  int before = 0;
  const std::int64_t* slots = nullptr;
  if (step.kept && step.kept->before[part.seq]) {
    const long at = a.layer * step.kept->layer_stride + static_cast<long>(kv_head) * heads.size;
    before = step.kept->before[part.seq], slots = step.kept->kept[part.seq];
    keys.kept = step.kept->keys + at, values.kept = step.kept->values + at;
    keys.kept_stride = values.kept_stride = step.kept->width;
  }
  const int seen = before + (step.seen ? static_cast<int>(step.seen[part.seq]) : step.length(part.seq));
  a.kernel->run({src + part.first * stride + heads.query() + static_cast<long>(head) * heads.step(), stride, heads.step(),
                 keys, values, slots, before, dst + static_cast<long>(head) * heads.size, width, heads.size, group,
                 before + part.first, part.rows, seen, heads.size, a.scale, a.is_causal, a.window, a.soft_cap,
                 step.bias ? step.bias + head * step.bias_head_stride : nullptr, step.bias_row_stride,
                 step.bias_head_stride, place.scratch});
}

}  // namespace forebay
