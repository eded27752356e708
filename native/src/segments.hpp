// Sums and maxima over segments of rows, and rows of unit length, for pooling. Each has one order, whatever stands beside it.
#pragma once

#include <cmath>
#include <cstdint>

namespace forebay {

// out[i] = sum of weights times rows over the rows starts[i] to starts[i] + lens[i]; weights stand segment after segment,
// null: all are 1.
inline void weighted_sums(const float* rows, long width, const std::int64_t* starts, const std::int64_t* lens, long segments,
                          const float* weights, float* out) {
  for (long i = 0; i < segments; ++i, out += width) {
    for (long j = 0; j < width; ++j) out[j] = 0.0f;
    const float* row = rows + starts[i] * width;
    for (long left = lens[i]; left > 0; --left, row += width) {
      const float weight = weights ? *weights++ : 1.0f;
      for (long j = 0; j < width; ++j) out[j] += weight * row[j];
    }
  }
}

// out[i] = the greatest of the rows starts[i] to starts[i] + lens[i], column by column; NaN wins, no rows are zeros.
inline void maxima(const float* rows, long width, const std::int64_t* starts, const std::int64_t* lens, long segments,
                   float* out) {
  for (long i = 0; i < segments; ++i, out += width) {
    const float* row = rows + starts[i] * width;
    for (long j = 0; j < width; ++j) out[j] = lens[i] > 0 ? row[j] : 0.0f;
    for (long left = lens[i] - 1; left > 0; --left) {
      row += width;
      for (long j = 0; j < width; ++j) out[j] = (row[j] > out[j]) | (row[j] != row[j]) ? row[j] : out[j];
    }
  }
}

// out = rows scaled to unit length, where they are not shorter than `least`.
inline void unit_rows(const float* rows, long count, long width, float* out, float least) {
  constexpr long lanes = 16;
  for (long i = 0; i < count; ++i, rows += width, out += width) {
    float squares[lanes] = {};
    long j = 0;
    for (; j + lanes <= width; j += lanes)
      for (long lane = 0; lane < lanes; ++lane) squares[lane] += rows[j + lane] * rows[j + lane];
    for (; j < width; ++j) squares[j % lanes] += rows[j] * rows[j];
    double sum = 0;
    for (const float square : squares) sum += square;
    const float norm = static_cast<float>(std::sqrt(sum));
    const float divisor = norm < least ? least : norm;  // NaN stays
    for (j = 0; j < width; ++j) out[j] = rows[j] / divisor;
  }
}

}  // namespace forebay
