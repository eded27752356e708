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

bool await_change(std::atomic<unsigned>& word, unsigned old) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kSpinsPerLook; ++i) {
      if (word.load(std::memory_order_acquire) != old) return false;
      _mm_pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  while (word.load(std::memory_order_acquire) == old) word.wait(old, std::memory_order_acquire);
  return true;
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

// Once in each run, while it is open.
bool Pool::enter(std::uint64_t& last_run) {
  std::uint64_t gate = gate_.load(std::memory_order_acquire);
  while (!(gate & kClosed) && gate / kRun != last_run)
    if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
      last_run = gate / kRun;
      return true;
    }
  return false;
}

void Pool::serve(int number) {
  Worker& self = *workers_[number - 1];
  std::uint64_t last_run = 0;
  for (unsigned seen = 0;;) {
    await_change(self.ticket, seen);
    seen = self.ticket.load(std::memory_order_acquire);
    if (!enter(last_run)) continue;
    work_(context_, number);
    gate_.fetch_sub(1, std::memory_order_acq_rel);
    left_.fetch_add(1, std::memory_order_release);
    left_.notify_one();
  }
}

void Pool::run(int count, void (*work)(void*, int), void* context) {
  work_ = work;
  context_ = context;
  workers_.reserve(1024);  // serve() reads the vector while it grows
  while (static_cast<int>(workers_.size()) < count - 1) {
    workers_.push_back(std::make_unique<Worker>());
    std::thread(&Pool::serve, this, static_cast<int>(workers_.size())).detach();
  }
  const std::uint64_t number = gate_.load(std::memory_order_relaxed) / kRun + 1;
  gate_.store(number * kRun, std::memory_order_release);
  for (int i = 0; i < count - 1; ++i) {
    workers_[i]->ticket.fetch_add(1, std::memory_order_release);
    workers_[i]->ticket.notify_one();
  }
  work(context, 0);
  gate_.fetch_or(kClosed, std::memory_order_acq_rel);
  for (;;) {
    const unsigned left = left_.load(std::memory_order_acquire);
    if (gate_.load(std::memory_order_acquire) % kClosed == 0) return;
    await_change(left_, left);
  }
}

}  // namespace forebay
