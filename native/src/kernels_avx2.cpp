// The kernels, compiled for one instruction set. Everything here is local to this file: a function shared with another
// translation unit could reach a processor that lacks the instructions.
#include "kernels.hpp"
#include "vec_avx2.hpp"
// clang-format off: the rest is written in terms of Vec
#include "math.hpp"
#include "gemm.hpp"
#include "low.hpp"
#include "int8.hpp"
#include "words_avx2.hpp"
#include "widened.hpp"
#include "attention.hpp"
#include "attention_float.hpp"
#include "norm.hpp"
#include "maxsim.hpp"
#include "heads.hpp"

namespace forebay {
namespace {

constexpr LinearKernel kWordsLinear = int8_kernel<Words>("16-bit products");

constexpr Kernels make_table(const char* name, const LinearKernel* int8) {
  return {name, kPanel, kTileRows, {&kFloatLinear, &kWidenedLinear, int8},
          {&kFloatAttention, &kFloatAttention, &kFloatAttention}, layer_norm, rms_norm, turn, gate, add, activate,
          max_sim_scratch, max_sim};
}

const LinearKernel* find_vnni() {
#ifdef FOREBAY_AVX_VNNI
  return avx_vnni_int8_linear();
#else
  return nullptr;  // the compiler does not know the instruction
#endif
}

}  // namespace

const Kernels* avx2_kernels() {
  // First of all: even the table may be written by vector instructions.
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return nullptr;
  static const Kernels table = make_table("avx2", find_vnni() ? find_vnni() : &kWordsLinear);
  return &table;
}

const Kernels* avx2_basic_kernels() {
  static constexpr Kernels table = make_table("avx2-basic", &kWordsLinear);
  return avx2_kernels() && find_vnni() ? &table : nullptr;
}

}  // namespace forebay
