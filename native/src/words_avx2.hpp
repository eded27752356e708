// Products of 16-bit words by AVX2: what int8 is made of without VNNI. Two products are added to a sum at a time, in 32
// bits, so that nothing is cut off.
#pragma once

namespace forebay {
namespace {

struct Words {
  static constexpr int taken = 2;

  static void store(char* row, __m256i values) {
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(row), _mm_min_epu16(words, _mm_set1_epi16(255)));
  }
  static __m256i column(const char* weights) {
    return _mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(weights)));
  }
  // GCC keeps the sums in registers only if the instructions are written as such.
  static void add(__m256i& sum, __m256i row, __m256i column) {
    __m256i both;
    asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(both) : "x"(row), "x"(column));
  }
};

}  // namespace
}  // namespace forebay
