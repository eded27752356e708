// MaxSim of many documents with one query, shared among the threads of the pool document by document.
#pragma once
#include <vector>

#include "kernels.hpp"

namespace forebay {

struct Document {
  const float* rows;
  long stride;
  int count;
};

// out[i] = MaxSim of query [count, size] and document i, -inf where it has no rows.
void max_sims(const Kernels& kernels, const float* query, int count, int size, const std::vector<Document>& documents,
              float* out, int threads);

}  // namespace forebay
