// The threads of the native core: one pool a process, beside and independent of torch's. A thread that has nothing to
// do spins for a moment, so that steps in quick succession find it awake, and then sleeps.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

namespace forebay {

// Waits until `word` is no longer `old`.
void await_change(std::atomic<unsigned>& word, unsigned old);

// Lets the workers of one run meet. A worker that is descheduled makes the others sleep rather than spin.
class Barrier {
 public:
  explicit Barrier(int count) : count_(count), missing_(count) {}
  void meet();

 private:
  const int count_;
  std::atomic<int> missing_;
  std::atomic<unsigned> round_{0};
};

class Pool {
 public:
  // The pool of this process; a forked child gets its own, as threads do not survive a fork.
  static Pool& get();

  // Calls work(context, worker) for worker = 0 … count - 1, the first on the calling thread, and returns when all have
  // returned. The caller holds `mutex`. `work` must not throw.
  void run(int count, void (*work)(void*, int), void* context);

  std::mutex mutex;

 private:
  struct Worker {
    std::atomic<unsigned> ticket{0};
  };
  void serve(int number);

  std::vector<std::unique_ptr<Worker>> workers_;  // worker number i + 1 is workers_[i]
  void (*work_)(void*, int) = nullptr;
  void* context_ = nullptr;
  std::atomic<unsigned> pending_{0};
};

}  // namespace forebay
