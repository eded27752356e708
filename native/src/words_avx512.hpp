// Products of 16-bit words by AVX-512 BW: what int8 is made of without VNNI. Two products are added to a sum at a time,
// in 32 bits, so that nothing is cut off.
#pragma once

namespace forebay {
namespace {

struct Words {
  static constexpr int taken = 2;

  static void store(char* row, __m512i values) {
    const __m512i limited = _mm512_min_epi32(_mm512_max_epi32(values, _mm512_setzero_si512()), _mm512_set1_epi32(255));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(row), _mm512_cvtepi32_epi16(limited));
  }
  static __m512i column(const char* weights) {
    return _mm512_cvtepi8_epi16(_mm256_load_si256(reinterpret_cast<const __m256i*>(weights)));
  }
  // GCC keeps the sums in registers only if the instructions are written as such.
  static void add(__m512i& sum, __m512i row, __m512i column) {
    __m512i both;
    asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+v"(sum), "=&v"(both) : "v"(row), "v"(column));
  }
};

}  // namespace
}  // namespace forebay
