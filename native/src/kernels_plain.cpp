// The kernels, compiled for one instruction set. Everything here is local to this file: a function shared with another
// translation unit could reach a processor that lacks the instructions.
#include "kernels.hpp"
#include "vec_plain.hpp"
// clang-format off: the rest is written in terms of Vec
#include "math.hpp"
#include "gemm.hpp"
#include "attention.hpp"
#include "attention_float.hpp"
#include "norm.hpp"
#include "maxsim.hpp"
#include "heads.hpp"

namespace forebay {

const Kernels* plain_kernels() {
  static constexpr Kernels table{"plain", kPanel, kTileRows, {&kFloatLinear, nullptr, nullptr},
                                 {&kFloatAttention, &kFloatAttention, &kFloatAttention}, layer_norm, rms_norm,
                                 turn, gate, add, activate,
                                 max_sim_scratch, max_sim};
  return &table;
}

}  // namespace forebay
