// Programs: how their rows are cut over blocks and threads. What an operation does to its rows is in operations.cpp.
#include "program.hpp"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>

namespace forebay {

namespace {
constexpr long kGroupRows = 512;  // a thread's activations then stay near it, and weights are read seldom enough
constexpr long kMostColumnRows = 32;  // more are done sooner in blocks of rows
constexpr int kAlone = 16;            // short steps that are not shared after one that had to wait for another thread
constexpr int kUnitRows = 2;          // where columns are cut: of the operations between linear layers
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
  const int place = static_cast<int>(ops_.size());
  const bool is_attention = op.kind == Op::Kind::attention, is_linear = op.kind == Op::Kind::linear;
  const auto extend = [place](std::vector<Stretch>& stretches, Stretch::Unit unit) {
    if (stretches.empty() || stretches.back().unit != Stretch::Unit::rows || unit != Stretch::Unit::rows)
      stretches.push_back({place, place, unit});
    stretches.back().last = place + 1;
  };
  extend(stretches_, is_attention ? Stretch::Unit::head : Stretch::Unit::rows);
  extend(steps_, is_attention ? Stretch::Unit::head : is_linear ? Stretch::Unit::columns : Stretch::Unit::rows);
  if (is_linear) {
    if (last_linear_ >= 0) ops_[last_linear_].next_linear = place;
    last_linear_ = place;
  }
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
void Program::make_parts(const Step& step, bool is_shared) {
  parts_.clear();
  for (int seq = 0; seq < step.num_seqs; ++seq) {
    const int length = step.length(seq), pieces = is_shared ? (length + kPartRows - 1) / kPartRows : 1;
    for (int piece = pieces - 1; piece >= 0 && length; --piece) {
      const int first = is_shared ? piece * kPartRows : 0;
      parts_.push_back({seq, first, is_shared ? std::min(kPartRows, length - first) : length});
    }
  }
}

void Program::reserve(const Step& step, bool is_shared) {
  globals_.resize(std::max<std::size_t>(globals_.size(), step.threads));
  locals_.resize(globals_.size());
  scratch_.resize(globals_.size());
  long most_rows = is_shared ? step.tokens() : 0, scratch = 0;
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
    if (worker == 0 || !is_shared) globals_[worker].at_least(global_width_ * most_rows);
    locals_[worker].at_least(local_width_ * kBlockRows);
    scratch_[worker].at_least(scratch);
  }
}

struct Program::Run {
  Program& program;
  const Step& step;
  const std::vector<Stretch>& stretches;
  bool by_columns;
  long height;                  // of a unit of rows
  std::atomic<int> next_group;  // counts down: batches are ordered by length, and the longest go first
};

Cut Program::choose_cut(const Step& step, Cut wish) const {
  const bool is_shared = step.kept && step.kept->is_shared;
  if (wish == Cut::groups) return is_shared ? Cut::rows : wish;
  if (wish == Cut::columns) return step.tokens() > kBlockRows ? Cut::rows : wish;
  if (wish == Cut::rows) return wish;
  if (!is_shared && (step.threads == 1 || are_balanced(step))) return Cut::groups;
  return step.tokens() <= kMostColumnRows ? Cut::columns : Cut::rows;
}

void Program::run(const Step& given, Cut wish) {
  if (given.tokens() == 0) return;
  check(given);
  Pool& pool = Pool::get();
  const std::lock_guard<std::mutex> lock(pool.mutex);
  Step step = given;
  make_groups(step);
  const Cut cut = choose_cut(step, wish);
  // Where others want the processor too, a thread may lose its core with a unit in hand, and all wait for it.
  if (wish == Cut::automatic && cut == Cut::columns && num_alone_ > 0) --num_alone_, step.threads = 1;
  const bool is_shared = cut != Cut::groups, by_columns = cut == Cut::columns;
  make_parts(step, is_shared);
  reserve(step, is_shared);
  Run run{*this, step, by_columns ? steps_ : stretches_, by_columns,
          by_columns ? kUnitRows : block_rows((step.tokens() + step.threads - 1) / step.threads),
          static_cast<int>(groups_.size()) - 1};
  if (!is_shared) return pool.run(step.threads, [](void* context, int worker) {
    Run& run = *static_cast<Run*>(context);
    for (int i; (i = run.next_group.fetch_sub(1, std::memory_order_relaxed)) >= 0;)
      run.program.run_group(run.step, run.program.groups_[i], worker);
  }, &run);
  if (progress_.size() < run.stretches.size()) progress_ = std::vector<Progress>(run.stretches.size());
  for (std::size_t i = 0; i < run.stretches.size(); ++i) progress_[i].reset(count_units(run, run.stretches[i]));
  pool.run(step.threads, [](void* context, int worker) {
    const Run& run = *static_cast<const Run*>(context);
    run.program.run_shared(run, worker);
  }, &run);
}

void Program::run_group(const Step& step, const Group& group, int worker) {
  const Place place{group, globals_[worker].data(), locals_[worker].data(), scratch_[worker].data()};
  for (const Stretch& stretch : stretches_) {
    if (stretch.unit == Stretch::Unit::rows) {
      run_blocks(step, stretch, place);
      continue;
    }
    const Op& op = ops_[stretch.first];
    auto part = std::lower_bound(parts_.begin(), parts_.end(), group.first_seq,
                                 [](const Part& one, int seq) { return one.seq < seq; });
    for (; part != parts_.end() && part->seq < group.last_seq; ++part)
      for (int head = 0; head < op.attention.heads.kv_count; ++head) attend(step, op, place, *part, head);
  }
}

long Program::count_units(const Run& run, const Stretch& stretch) const {
  switch (stretch.unit) {
    case Stretch::Unit::rows: return (run.step.tokens() + run.height - 1) / run.height;
    case Stretch::Unit::head: return static_cast<long>(parts_.size()) * ops_[stretch.first].attention.heads.kv_count;
    case Stretch::Unit::columns: return (ops_[stretch.first].linear->out + kernels_.panel - 1) / kernels_.panel;
  }
  return 0;
}

void Program::run_shared(const Run& run, int worker) {
  const Step& step = run.step;
  const Group all{0, step.num_seqs, 0, step.tokens()};
  Place place{all, globals_[0].data(), locals_[run.by_columns ? 0 : worker].data(), scratch_[worker].data()};
  for (std::size_t i = 0; i < run.stretches.size(); ++i) {
    const Stretch& stretch = run.stretches[i];
    bool is_first = true;
    const bool slept = progress_[i].share([&](long unit) {
      run_unit(run, stretch, place, unit, is_first);
      is_first = false;
    });
    if (slept && worker == 0 && run.by_columns) num_alone_ = kAlone;
  }
}

void Program::run_unit(const Run& run, const Stretch& stretch, Place& place, long unit, bool is_first) const {
  const Op& op = ops_[stretch.first];
  if (stretch.unit == Stretch::Unit::columns) return run_columns(run, op, place, unit, is_first);
  if (stretch.unit == Stretch::Unit::head) {
    const int heads = op.attention.heads.kv_count;
    return attend(run.step, op, place, parts_[unit / heads], static_cast<int>(unit % heads));
  }
  const long first = unit * run.height;
  if (!run.by_columns) place.local_row = first;
  run_rows(run.step, stretch, place, first, static_cast<int>(std::min(run.height, place.group.rows - first)));
}

// One panel of a linear layer for all rows; while it is computed, the one that this thread may come to next is fetched.
void Program::run_columns(const Run& run, const Op& op, const Place& place, long panel, bool is_first) const {
  const PackedLinear& l = *op.linear;
  const int first = static_cast<int>(panel) * kernels_.panel, next = first + run.step.threads * kernels_.panel;
  const float* ahead = next < l.out ? l.weight.data() + l.kernel->packed_size(next, l.in) : nullptr;
  if (!ahead && op.next_linear >= 0) ahead = ops_[op.next_linear].linear->weight.data();
  float* const residual = rows_of(op.residual, place, 0);
  l.kernel->run({rows_of(op.src, place, 0), l.in, l.weight.data() + l.kernel->packed_size(first, l.in), l.bias.data() + first,
                 residual ? residual + first : nullptr, l.out, rows_of(op.dst, place, 0) + first, l.out,
                 static_cast<int>(run.step.tokens()), l.in, std::min(kernels_.panel, l.out - first), op.activation,
                 place.scratch, ahead, !is_first});
}

void Program::run_blocks(const Step& step, const Stretch& stretch, const Place& place) const {
  const long rows = place.group.rows, height = block_rows(rows);
  Place block = place;
  for (long row = 0; row < rows; row += height) {
    block.local_row = row;
    run_rows(step, stretch, block, row, static_cast<int>(std::min(height, rows - row)));
  }
}

void Program::run_rows(const Step& step, const Stretch& stretch, const Place& place, long first, int rows) const {
  for (int i = stretch.first; i < stretch.last; ++i) run_op(step, ops_[i], place, first, rows);
}

}  // namespace forebay
