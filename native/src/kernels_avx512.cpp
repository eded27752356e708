// The kernels, compiled for one instruction set. Everything here is local to this file: a function shared with another
// translation unit could reach a processor that lacks the instructions.
#include "kernels.hpp"
#include "vec_avx512.hpp"
// clang-format off: the rest is written in terms of Vec
#include "math.hpp"
#include "gemm.hpp"
#include "attention.hpp"
#include "attention_float.hpp"
#include "norm.hpp"
#include "maxsim.hpp"
#include "heads.hpp"

namespace forebay {

const Kernels* avx512_kernels() {
  static const AttentionKernel* const low = avx512_bf16_attention() ? avx512_bf16_attention() : &kFloatAttention;
  static const Kernels table{"avx512", kPanel, kTileRows, {&kFloatLinear, avx512_bf16_linear(), avx512_int8_linear()},
                             {&kFloatAttention, low, low}, layer_norm, rms_norm, turn, gate, add, activate,
                                 max_sim_scratch, max_sim};
  const bool fits = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  return fits ? &table : nullptr;
}

}  // namespace forebay
