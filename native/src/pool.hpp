// The threads of the native core: one pool a process, beside and independent of torch's. A thread that has nothing to
// do spins for a moment, so that steps in quick succession find it awake, and then sleeps.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace forebay {

// Waits until `word` is no longer `old`; tells whether that took so long that it went to sleep.
bool await_change(std::atomic<unsigned>& word, unsigned old);

// How far the threads of a run are with one part of it, which is done in units. Whoever is free takes the next unit; nobody
// waits for a thread that has taken none.
class alignas(64) Progress {
 public:
  void reset(long units) {
    units_ = units;
    next_.store(0, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
  }
  // Calls work(unit) for units until all are taken, and returns when all are done: whether it slept until they were.
  template <class Work>
  bool share(Work&& work) {
    for (long unit; (unit = next_.fetch_add(1, std::memory_order_relaxed)) < units_;) {
      work(unit);
      if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<unsigned>(units_)) done_.notify_all();
    }
    bool slept = false;
    for (unsigned done; (done = done_.load(std::memory_order_acquire)) != static_cast<unsigned>(units_);)
      slept = await_change(done_, done) || slept;
    return slept;
  }

 private:
  long units_ = 0;
  std::atomic<long> next_{0};
  std::atomic<unsigned> done_{0};
};

class Pool {
 public:
  // The pool of this process; a forked child gets its own, as threads do not survive a fork.
  static Pool& get();

  // Calls work(context, 0) on the calling thread, and work(context, worker) on as many others of the workers up to
  // count - 1 as come before it returns; returns when all have. So `work` does what is left to do, whoever else does some
  // of it, and a thread that is slow to wake delays nobody. The caller holds `mutex`. `work` must not throw.
  void run(int count, void (*work)(void*, int), void* context);

  std::mutex mutex;

 private:
  static constexpr std::uint64_t kClosed = 1u << 16, kRun = 1u << 17;
  struct Worker {
    std::atomic<unsigned> ticket{0};
  };
  void serve(int number);
  bool enter(std::uint64_t& last_run);

  std::vector<std::unique_ptr<Worker>> workers_;  // worker number i + 1 is workers_[i]
  void (*work_)(void*, int) = nullptr;
  void* context_ = nullptr;
  std::atomic<std::uint64_t> gate_{kClosed};  // the number of the run, whether it is closed, how many workers are inside
  std::atomic<unsigned> left_{0};             // changes whenever a worker leaves
};

}  // namespace forebay
