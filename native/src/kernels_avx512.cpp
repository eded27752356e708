// The kernels, compiled for one instruction set. Everything here is local to this file: a function shared with another
// translation unit could reach a processor that lacks the instructions.
#include "kernels.hpp"
#include "vec_avx512.hpp"
// clang-format off: the rest is written in terms of Vec
#include "math.hpp"
#include "gemm.hpp"
#include "low.hpp"
#include "int8.hpp"
#include "words_avx512.hpp"
#include "widened.hpp"
#include "attention.hpp"
#include "attention_float.hpp"
#include "norm.hpp"
#include "maxsim.hpp"
#include "heads.hpp"

namespace forebay {
namespace {

constexpr LinearKernel kWordsLinear = int8_kernel<Words>("16-bit products");

constexpr Kernels make_table(const char* name, const LinearKernel* bf16, const LinearKernel* int8,
                             const AttentionKernel* low) {
  return {name, kPanel, kTileRows, {&kFloatLinear, bf16, int8}, {&kFloatAttention, low, low}, layer_norm, rms_norm,
          turn, gate, add, activate, max_sim_scratch, max_sim};
}

}  // namespace

const Kernels* avx512_kernels() {
  // First of all: even the table may be written by vector instructions.
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512dq") ||
      !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl"))
    return nullptr;
  static const LinearKernel *const bf16 = avx512_bf16_linear(), *const int8 = avx512_int8_linear();
  static const AttentionKernel* const low = avx512_bf16_attention();
  static const Kernels table = make_table("avx512", bf16 ? bf16 : &kWidenedLinear, int8 ? int8 : &kWordsLinear,
                                          low ? low : &kFloatAttention);
  return &table;
}

const Kernels* avx512_basic_kernels() {
  static constexpr Kernels table = make_table("avx512-basic", &kWidenedLinear, &kWordsLinear, &kFloatAttention);
  return avx512_kernels() && (avx512_bf16_linear() || avx512_int8_linear()) ? &table : nullptr;
}

}  // namespace forebay
