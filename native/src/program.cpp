// Programs: how their rows are cut over blocks and threads. What an operation does to its rows is in operations.cpp.
#include "program.hpp"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>

#include "pool.hpp"

namespace forebay {

namespace {
constexpr long kGroupRows = 512;  // a thread's activations then stay near it, and weights are read seldom enough
constexpr long kMinSharedRows = 32;  // fewer are done sooner by one thread than by waking another
constexpr int kPartRows = 192;       // queries that are computed together where threads share a sequence
constexpr double kMaxIdle = 1.15;    // groups may take so many times longer than an even share of the rows would

long block_rows(long rows) {
  const long blocks = (rows + kBlockRows - 1) / kBlockRows;
  return blocks ? round_up((rows + blocks - 1) / blocks, 6) : 0;
}
}  // namespace

PackedLinear::PackedLinear(const Kernels& k, Precision precision, const float* w, const float* b, int out, int in)
    : kernels(&k), kernel(k.linear[static_cast<int>(precision)]), out(out), in(in), bias(round_up(out, k.panel)) {
  if (!kernel) throw std::invalid_argument(std::string("the kernels '") + k.name + "' lack this precision");
  weight = Floats(kernel->packed_size(out, in));
  kernel->pack(w, out, in, weight.data());
  std::fill_n(bias.data(), bias.size(), 0.0f);
  if (b) std::copy_n(b, out, bias.data());
}

Program::Program(const Kernels& kernels, std::vector<Slot> slots) : kernels_(kernels), slots_(std::move(slots)) {
  for (const Slot& slot : slots_) {
    long& width = slot.is_global ? global_width_ : local_width_;
    offsets_.push_back(width);
    width += round_up(slot.width, kFloatsPerLine);
  }
}

void Program::append(Op op) {
  const bool is_attention = op.kind == Op::Kind::attention;
  const int place = static_cast<int>(ops_.size());
  if (stretches_.empty() || is_attention || stretches_.back().is_attention)
    stretches_.push_back({place, place + 1, is_attention});
  else
    stretches_.back().last = place + 1;
  if (op.kind == Op::Kind::show) num_states_ = std::max(num_states_, op.state + 1);
  ops_.push_back(std::move(op));
}

void Program::check(const Step& step) const {
  static const char* const names[] = {"token ids", "positions", "token types"};
  for (const Op& op : ops_)
    for (const Table& table : op.tables) {
      const std::int64_t* rows = step.sources[static_cast<int>(table.source)];
      if (!rows) continue;
      for (long i = 0, tokens = step.tokens(); i < tokens; ++i)
        if (rows[i] < 0 || rows[i] >= table.count)
          throw std::out_of_range(std::string(names[static_cast<int>(table.source)]) + " hold " +
                                  std::to_string(rows[i]) + ", but their table has " + std::to_string(table.count) +
                                  " rows");
    }
}

void Program::check_angles(const std::vector<Angles>& angles) const {
  for (const Op& op : ops_)
    if (op.angles >= 0 && (op.angles >= static_cast<int>(angles.size()) ||
                           2 * angles[op.angles].half > op.attention.heads.size))
      throw std::invalid_argument("a table of angles is missing, or wider than a head");
}

void Program::check_kept(int layers, int width) const {
  for (const Op& op : ops_)
    if (op.kind == Op::Kind::keep &&
        (op.attention.layer >= layers || op.attention.heads.kv_count * op.attention.heads.size != width))
      throw std::invalid_argument("keys are kept for fewer layers, or in another width");
}

void Program::make_groups(const Step& step) {
  groups_.clear();
  const long tokens = step.tokens();
  const long rounds = std::max(1L, (tokens + step.threads * kGroupRows - 1) / (step.threads * kGroupRows));
  const double share = static_cast<double>(tokens) / static_cast<double>(rounds * step.threads);
  int first = 0;
  for (int seq = 0; seq < step.num_seqs; ++seq) {
    const double wanted = share * static_cast<double>(groups_.size() + 1);
    // The border goes where it is nearest to its due place.
    const bool is_last = seq + 1 == step.num_seqs;
    const double here = static_cast<double>(step.borders[seq + 1]);
    const double next = is_last ? here : static_cast<double>(step.borders[seq + 2]);
    if (!is_last && wanted - here > next - wanted) continue;
    groups_.push_back({first, seq + 1, step.borders[first], step.borders[seq + 1] - step.borders[first]});
    first = seq + 1;
  }
}

bool Program::are_balanced(const Step& step) const {
  std::vector<long> busy(step.threads, 0);
  for (auto group = groups_.rbegin(); group != groups_.rend(); ++group)
    *std::min_element(busy.begin(), busy.end()) += group->rows;
  const double even = static_cast<double>(step.tokens()) / step.threads;
  return static_cast<double>(*std::max_element(busy.begin(), busy.end())) <= kMaxIdle * even;
}

// Whole sequences, or pieces of them, the last first: causal ones have most to do.
void Program::make_parts(const Step& step, bool by_rows) {
  parts_.clear();
  for (int seq = 0; seq < step.num_seqs; ++seq) {
    const int length = step.length(seq), pieces = by_rows ? (length + kPartRows - 1) / kPartRows : 1;
    for (int piece = pieces - 1; piece >= 0 && length; --piece) {
      const int first = by_rows ? piece * kPartRows : 0;
      parts_.push_back({seq, first, by_rows ? std::min(kPartRows, length - first) : length});
    }
  }
}

void Program::reserve(const Step& step, bool by_rows) {
  globals_.resize(std::max<std::size_t>(globals_.size(), step.threads));
  locals_.resize(globals_.size());
  scratch_.resize(globals_.size());
  long most_rows = by_rows ? step.tokens() : 0, scratch = 0;
  int queries = 0;
  for (const Group& group : groups_) most_rows = std::max(most_rows, group.rows);
  for (const Part& part : parts_) queries = std::max(queries, part.rows);
  for (const Op& op : ops_) {
    if (op.kind == Op::Kind::attention) {
      const Heads& heads = op.attention.heads;
      scratch = std::max(scratch, op.attention.kernel->scratch(heads.size, queries * (heads.count / heads.kv_count)));
    }
    if (op.kind == Op::Kind::linear) scratch = std::max(scratch, op.linear->kernel->scratch(kBlockRows, op.linear->in));
  }
  for (int worker = 0; worker < step.threads; ++worker) {
    if (worker == 0 || !by_rows) globals_[worker].at_least(global_width_ * most_rows);
    locals_[worker].at_least(local_width_ * kBlockRows);
    scratch_[worker].at_least(scratch);
  }
}

struct Program::Run {
  Program& program;
  const Step& step;
  bool by_rows;
  Barrier barrier;
  std::atomic<int> next_group;               // counts down: batches are ordered by length, and the longest go first
  std::vector<std::atomic<long>> next_unit;  // by stretch: attention's (part, head) pairs are taken one by one
};

void Program::run(const Step& given, Cut cut) {
  if (given.tokens() == 0) return;
  check(given);
  Pool& pool = Pool::get();
  const std::lock_guard<std::mutex> lock(pool.mutex);
  Step step = given;
  if (step.tokens() < kMinSharedRows && cut == Cut::automatic) step.threads = 1;
  make_groups(step);
  const bool is_shared = step.kept && step.kept->is_shared;
  const bool by_rows = cut == Cut::rows || is_shared || (cut == Cut::automatic && step.threads > 1 && !are_balanced(step));
  make_parts(step, by_rows);
  reserve(step, by_rows);
  Run run{*this, step, by_rows, Barrier(step.threads), static_cast<int>(groups_.size()) - 1,
          std::vector<std::atomic<long>>(by_rows ? stretches_.size() : 0)};
  auto work = [](void* context, int worker) {
    Run& run = *static_cast<Run*>(context);
    if (run.by_rows) return run.program.share_rows(run, worker);
    for (int i; (i = run.next_group.fetch_sub(1, std::memory_order_relaxed)) >= 0;)
      run.program.run_group(run.step, run.program.groups_[i], worker);
  };
  pool.run(step.threads, work, &run);
}

void Program::run_group(const Step& step, const Group& group, int worker) {
  const Place place{group, globals_[worker].data(), locals_[worker].data(), scratch_[worker].data()};
  for (const Stretch& stretch : stretches_) {
    if (!stretch.is_attention) {
      run_rows(step, stretch, place, 0, group.rows);
      continue;
    }
    const Op& op = ops_[stretch.first];
    auto part = std::lower_bound(parts_.begin(), parts_.end(), group.first_seq,
                                 [](const Part& one, int seq) { return one.seq < seq; });
    for (; part != parts_.end() && part->seq < group.last_seq; ++part)
      for (int head = 0; head < op.attention.heads.kv_count; ++head) attend(step, op, place, *part, head);
  }
}

void Program::share_rows(Run& run, int worker) {
  const Step& step = run.step;
  const Group all{0, step.num_seqs, 0, step.tokens()};
  const Place place{all, globals_[0].data(), locals_[worker].data(), scratch_[worker].data()};
  const long share = (all.rows + step.threads - 1) / step.threads;
  const long first = std::min(all.rows, share * worker), last = std::min(all.rows, first + share);
  for (std::size_t i = 0; i < stretches_.size(); ++i) {
    const Stretch& stretch = stretches_[i];
    if (stretch.is_attention) {
      const Op& op = ops_[stretch.first];
      const int heads = op.attention.heads.kv_count;
      const long units = static_cast<long>(parts_.size()) * heads;
      for (long unit; (unit = run.next_unit[i].fetch_add(1, std::memory_order_relaxed)) < units;)
        attend(step, op, place, parts_[unit / heads], static_cast<int>(unit % heads));
    } else {
      run_rows(step, stretch, place, first, last);
    }
    if (i + 1 < stretches_.size()) run.barrier.meet();
  }
}

void Program::run_rows(const Step& step, const Stretch& stretch, const Place& place, long first, long last) const {
  const long height = block_rows(last - first);
  for (long row = first; row < last; row += height)
    for (int i = stretch.first; i < stretch.last; ++i)
      run_op(step, ops_[i], place, row, static_cast<int>(std::min(height, last - row)));
}

}  // namespace forebay
