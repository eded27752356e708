// The kernels, compiled for one instruction set. Everything here is local to this file: a function shared with another
// translation unit could reach a processor that lacks the instructions.
#include "kernels.hpp"
#include "vec_avx2.hpp"
// clang-format off: the rest is written in terms of Vec
#include "math.hpp"
#include "gemm.hpp"
#include "attention.hpp"
#include "attention_float.hpp"
#include "norm.hpp"
#include "maxsim.hpp"
#include "heads.hpp"

namespace forebay {

const Kernels* avx2_kernels() {
  static constexpr Kernels table{"avx2", kPanel, kTileRows, {&kFloatLinear, nullptr, nullptr},
                                 {&kFloatAttention, &kFloatAttention, &kFloatAttention}, layer_norm, rms_norm,
                                 turn, gate, add, activate,
                                 max_sim_scratch, max_sim};
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &table : nullptr;
}

}  // namespace forebay
