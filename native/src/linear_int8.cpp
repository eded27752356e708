// Linear layers in int8 by AVX-512 VNNI: four products of a byte by a signed byte, and their sum, in one instruction.
#include "kernels.hpp"
#include "vec_avx512.hpp"
// clang-format off: the rest is written in terms of Vec
#include "math.hpp"
#include "gemm.hpp"
#include "low.hpp"
#include "int8.hpp"

namespace forebay {
namespace {

struct Vnni {
  static constexpr int taken = 4;

  static void store(char* row, __m512i values) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(row),
                     _mm512_cvtusepi32_epi8(_mm512_max_epi32(values, _mm512_setzero_si512())));
  }
  static __m512i column(const char* weights) { return _mm512_load_si512(weights); }
  // GCC keeps the sums in registers only if the instruction is written as such.
  static void add(__m512i& sum, __m512i row, __m512i column) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(row), "v"(column));
  }
};

}  // namespace

const LinearKernel* avx512_int8_linear() {
  static constexpr LinearKernel kernel = int8_kernel<Vnni>("AVX-512 VNNI");
  return __builtin_cpu_supports("avx512vnni") ? &kernel : nullptr;
}

}  // namespace forebay
