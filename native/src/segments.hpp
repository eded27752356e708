// Sums over segments of rows, for pooling. A segment's sum has one order, whatever stands beside it.
#pragma once

#include <cstdint>

namespace forebay {

// out[i] = sum of weights times rows over the rows starts[i] to starts[i] + lens[i]; weights stand segment after segment.
inline void weighted_sums(const float* rows, long width, const std::int64_t* starts, const std::int64_t* lens, long segments,
                          const float* weights, float* out) {
  for (long i = 0; i < segments; ++i, out += width) {
    for (long j = 0; j < width; ++j) out[j] = 0.0f;
    const float* row = rows + starts[i] * width;
    for (long left = lens[i]; left > 0; --left, row += width, ++weights) {
      const float weight = *weights;
      for (long j = 0; j < width; ++j) out[j] += weight * row[j];
    }
  }
}

}  // namespace forebay
