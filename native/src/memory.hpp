// Floats on lines of the cache, on large pages where there are many of them.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace forebay {

class Floats {
 public:
  Floats() = default;
  explicit Floats(std::size_t count) : count_(count) {
    constexpr std::size_t page = 2u << 20, line = 64;
    const std::size_t unit = count * sizeof(float) >= page ? page : line;
    const std::size_t bytes = (count * sizeof(float) + unit - 1) / unit * unit;
    data_.reset(static_cast<float*>(std::aligned_alloc(unit, bytes ? bytes : unit)));
    if (!data_) throw std::bad_alloc();
    if (unit == page) madvise(data_.get(), bytes, MADV_HUGEPAGE);  // a wish: without it, more is spent on page tables
  }

  float* data() const { return data_.get(); }
  std::size_t size() const { return count_; }

  // Room for at least so many; what was there is lost if it must grow.
  float* at_least(std::size_t count) {
    if (count > count_) {
      data_.reset();
      *this = Floats(count);
    }
    return data();
  }

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  std::unique_ptr<float, Free> data_;
  std::size_t count_ = 0;
};

}  // namespace forebay
