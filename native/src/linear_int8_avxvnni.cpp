// Linear layers in int8 by AVX-VNNI: what AVX-512 VNNI does, for processors without AVX-512.
#include <cpuid.h>

#include "kernels.hpp"
#include "vec_avx2.hpp"
// clang-format off: the rest is written in terms of Vec
#include "math.hpp"
#include "gemm.hpp"
#include "low.hpp"
#include "int8.hpp"

namespace forebay {
namespace {

struct Vnni {
  static constexpr int taken = 4;

  static void store(char* row, __m256i values) {
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1));
    const __m128i limited = _mm_min_epu16(words, _mm_set1_epi16(255));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(row), _mm_packus_epi16(limited, limited));
  }
  static __m256i column(const char* weights) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(weights)); }
  static void add(__m256i& sum, __m256i row, __m256i column) {
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(row), "x"(column));
  }
};

bool has_avx_vnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

}  // namespace

const LinearKernel* avx_vnni_int8_linear() {
  static constexpr LinearKernel kernel = int8_kernel<Vnni>("AVX-VNNI");
  static const bool fits = has_avx_vnni();
  return fits ? &kernel : nullptr;
}

}  // namespace forebay
