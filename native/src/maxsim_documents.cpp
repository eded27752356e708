#include "maxsim_documents.hpp"

#include <algorithm>
#include <atomic>

#include "memory.hpp"
#include "pool.hpp"

namespace forebay {

namespace {
constexpr double kMinShared = 1e6;  // multiplications: fewer are done sooner than another thread is awake

struct Work {
  const Kernels& kernels;
  const float* query;  // packed
  int count, size;
  const std::vector<Document>& documents;
  float* out;
  std::vector<Floats> scratch;  // by worker
  std::atomic<std::size_t> next{0};
};

void take(void* context, int worker) {
  Work& work = *static_cast<Work*>(context);
  for (std::size_t i; (i = work.next.fetch_add(1, std::memory_order_relaxed)) < work.documents.size();) {
    const Document& own = work.documents[i];
    work.out[i] = work.kernels.max_sim(
        {work.query, work.count, work.size, own.rows, own.stride, own.count, work.scratch[worker].data()});
  }
}
}  // namespace

void max_sims(const Kernels& kernels, const float* query, int count, int size, const std::vector<Document>& documents,
              float* out, int threads) {
  const LinearKernel& layout = *kernels.linear[static_cast<int>(Precision::float32)];
  const Floats packed(layout.packed_size(count, size));
  layout.pack(query, count, size, packed.data());
  double products = 0;
  for (const Document& document : documents) products += static_cast<double>(document.count) * count * size;
  threads = products < kMinShared ? 1 : std::min(threads, static_cast<int>(documents.size()));
  Work work{kernels, packed.data(), count, size, documents, out, {}};
  for (int i = 0; i < threads; ++i) work.scratch.emplace_back(kernels.max_sim_scratch(count));
  Pool& pool = Pool::get();
  const std::lock_guard<std::mutex> lock(pool.mutex);
  pool.run(threads, take, &work);
}

}  // namespace forebay
