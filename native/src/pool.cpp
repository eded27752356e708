#include "pool.hpp"

#include <immintrin.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace forebay {

namespace {
// Longer than a step's Python takes where texts follow one another, short enough not to be seen as load.
constexpr std::chrono::microseconds kSpin{60};
constexpr int kSpinsPerLook = 64;  // reading the clock costs as much as a few dozen looks at the word
}  // namespace

void await_change(std::atomic<unsigned>& word, unsigned old) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kSpinsPerLook; ++i) {
      if (word.load(std::memory_order_acquire) != old) return;
      _mm_pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  while (word.load(std::memory_order_acquire) == old) word.wait(old, std::memory_order_acquire);
}

void Barrier::meet() {
  const unsigned round = round_.load(std::memory_order_acquire);
  if (missing_.fetch_sub(1, std::memory_order_acq_rel) > 1) return await_change(round_, round);
  missing_.store(count_, std::memory_order_relaxed);
  round_.store(round + 1, std::memory_order_release);
  round_.notify_all();
}

Pool& Pool::get() {
  static std::mutex guard;
  static Pool* pool = nullptr;
  static pid_t owner = 0;
  const std::lock_guard<std::mutex> lock(guard);
  if (owner != getpid()) {  // the parent's pool is left as it is: its threads are not here to be ended
    pool = new Pool;        // and never deleted: sleeping threads may outlive static objects
    owner = getpid();
  }
  return *pool;
}

void Pool::serve(int number) {
  Worker& self = *workers_[number - 1];
  for (unsigned seen = 0;; ++seen) {
    await_change(self.ticket, seen);
    work_(context_, number);
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
  }
}

void Pool::run(int count, void (*work)(void*, int), void* context) {
  work_ = work;
  context_ = context;
  pending_.store(static_cast<unsigned>(count - 1), std::memory_order_relaxed);
  workers_.reserve(1024);  // serve() reads the vector while it grows
  while (static_cast<int>(workers_.size()) < count - 1) {
    workers_.push_back(std::make_unique<Worker>());
    std::thread(&Pool::serve, this, static_cast<int>(workers_.size())).detach();
  }
  for (int i = 0; i < count - 1; ++i) {
    workers_[i]->ticket.fetch_add(1, std::memory_order_release);
    workers_[i]->ticket.notify_one();
  }
  work(context, 0);
  for (unsigned left; (left = pending_.load(std::memory_order_acquire)) != 0;) await_change(pending_, left);
}

}  // namespace forebay
