// A network as a list of operations on the rows of a flat batch, and how a step of it runs on several threads.
//
// Between two attentions every operation works on each row by itself; such a stretch is run on small blocks of rows, all
// its operations on one block before the next, so that the block stays in the second-level cache. A value that is used
// within one stretch only needs room for a block; the others need it for all rows of the group (their slots are global).
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.hpp"
#include "memory.hpp"
#include "pool.hpp"

namespace forebay {

struct PackedLinear {
  // Throws where the kernels have no such precision.
  PackedLinear(const Kernels& kernels, Precision precision, const float* weight, const float* bias, int out, int in);
  PackedLinear(const PackedLinear&) = delete;
  const Kernels* kernels;
  const LinearKernel* kernel;
  int out, in;
  Floats weight, bias;
};

struct Slot {
  int width;
  bool is_global;
};

enum class Source : int { ids, positions, types };

struct Table {
  const float* rows;             // null where the table is in bfloat16
  const std::uint16_t* halves;  // the upper halves of the floats that they stand for
  long count;
  Source source;
};

// Where queries, keys and values of each head stand in a row: all queries, all keys, all values; or, alternating, those
// of one head and then of the next.
struct Heads {
  int count = 0, kv_count = 0, size = 0;
  bool is_alternating = false;

  int step() const { return is_alternating ? 3 * size : size; }
  int query() const { return 0; }
  int key() const { return is_alternating ? size : count * size; }
  int value() const { return is_alternating ? 2 * size : (count + kv_count) * size; }
  int width() const { return (count + 2 * kv_count) * size; }
};

// See AttentionArgs. `layer` is where keys and values are kept.
struct Attention {
  Heads heads;
  int layer = 0;
  float scale = 1.0f;
  bool is_causal = false;
  int window = 0;
  float soft_cap = 0.0f;
  const AttentionKernel* kernel = nullptr;
};

// Keys and values are kept by `keep`, which is done where the step says where. `turn` and `keep` change and read `src`.
struct Op {
  enum class Kind { embed, linear, layer_norm, rms_norm, turn, keep, gate, attention, show };
  Kind kind;
  int src = -1, dst = -1, residual = -1;  // slots
  std::vector<Table> tables;                    // embed: the sum of one row of each
  float factor = 1.0f;                          // embed: of that sum
  std::shared_ptr<const PackedLinear> linear;   // linear
  Activation activation = Activation::none;     // linear, gate
  Floats weight, bias;                          // norms; turn: weights of queries' and of keys' norms
  float eps = 0.0f;                             // norms, turn
  Attention attention;                          // turn, keep, attention
  int angles = -1;                              // turn: which of the step's tables of angles, or none
  int state = 0;                                // show: which layer's state this is
  int next_linear = -1;                         // linear: the next one among the operations
};

// Cosines and sines [rows, half | half], and which row is each token's.
struct Angles {
  const float* table;
  const std::int64_t* rows;
  int half;
};

// What a step keeps of keys and values, [layers, slots, width] each: those of its tokens at `slots` [tokens]; sequence i
// goes on from before[i] tokens, which are at kept[i]. `is_shared`: some of these are kept by this very step.
struct Kept {
  float *keys, *values;
  long layer_stride, width;
  const std::int64_t* slots;
  std::vector<const std::int64_t*> kept;
  std::vector<int> before;
  bool is_shared = false;
};

// One step. `sources` by Source; types may be null, which is row 0. `bias` [heads, rows, columns] may be null; it covers
// the longest sequence. `seen` tells how many of a sequence's first tokens are seen, null: all. `kept` may be null.
// `out` is [states, tokens, width] if every_state, otherwise [tokens, width], the last state.
struct Step {
  const std::int64_t* sources[3];
  const std::int64_t* borders;
  int num_seqs;
  const float* bias;
  long bias_head_stride, bias_row_stride;
  const std::int64_t* seen;
  std::vector<Angles> angles;
  const Kept* kept;
  float* out;
  bool every_state;
  int threads;

  long tokens() const { return borders[num_seqs]; }
  int length(int seq) const { return static_cast<int>(borders[seq + 1] - borders[seq]); }
};

// How a step is cut. Groups: whole sequences, taken by whichever thread is free, which then runs all layers on them. Where
// that would leave threads idle, all threads share one group and go through it part by part. Rows: they take blocks of
// rows. Columns: where there are too few rows for that, they take columns of each linear layer, and so read each weight
// once between them. Sharing is also how sequences run that read what others of the same step keep: then all keep before
// any reads.
enum class Cut { automatic, groups, rows, columns };

constexpr int kBlockRows = 96;  // rows that pass through a whole stretch together: a multiple of every tile's height

class Program {
 public:
  Program(const Kernels& kernels, std::vector<Slot> slots);
  Program(const Program&) = delete;
  void append(Op op);
  void run(const Step& step, Cut cut);
  const Kernels& kernels() const { return kernels_; }
  const std::vector<Slot>& slots() const { return slots_; }
  int num_states() const { return num_states_; }
  // Throw where a step's tables of angles, or its keys of `layers` by `width`, don't fit the operations.
  void check_angles(const std::vector<Angles>& angles) const;
  void check_kept(int layers, int width) const;

 private:
  // Operations that are run on some rows together, one attention on one head of one part, or one linear layer on some of
  // its columns.
  struct Stretch {
    enum class Unit { rows, head, columns };
    int first, last;
    Unit unit;
  };
  struct Group {
    int first_seq, last_seq;
    long first_row, rows;
  };
  // Tokens of a sequence whose queries are computed together.
  struct Part {
    int seq, first, rows;
  };
  // Where the rows of a group stand: each slot's rows are contiguous.
  struct Place {
    const Group& group;
    float* global;
    float* local;
    float* scratch;
    long local_row = 0;  // the row that local slots begin with
  };
  struct Run;

  void check(const Step& step) const;
  void make_groups(const Step& step);
  bool are_balanced(const Step& step) const;
  void make_parts(const Step& step, bool is_shared);
  Cut choose_cut(const Step& step, Cut wish) const;
  void reserve(const Step& step, bool is_shared);
  void run_group(const Step& step, const Group& group, int worker);
  void run_shared(const Run& run, int worker);
  void run_unit(const Run& run, const Stretch& stretch, Place& place, long unit, bool is_first) const;
  long count_units(const Run& run, const Stretch& stretch) const;
  void run_blocks(const Step& step, const Stretch& stretch, const Place& place) const;
  void run_rows(const Step& step, const Stretch& stretch, const Place& place, long first, int rows) const;
  void run_columns(const Run& run, const Op& op, const Place& place, long panel, bool is_first) const;
  void embed(const Step& step, const Op& op, float* dst, long batch_row, int rows) const;
  void run_op(const Step& step, const Op& op, const Place& place, long first, int rows) const;
  float* rows_of(int slot, const Place& place, long first) const;
  void turn(const Step& step, const Op& op, const Place& place, long first, int rows) const;
  void keep(const Step& step, const Op& op, const Place& place, long first, int rows) const;
  void attend(const Step& step, const Op& op, const Place& place, const Part& part, int kv_head) const;

  const Kernels& kernels_;
  std::vector<Slot> slots_;
  std::vector<long> offsets_;  // of each slot, in floats a row
  long global_width_ = 0, local_width_ = 0;
  std::vector<Op> ops_;
  std::vector<Stretch> stretches_;  // where rows are cut: an attention, or what is between two
  std::vector<Stretch> steps_;      // where columns are cut: each linear layer by itself too
  int last_linear_ = -1;
  int num_states_ = 0;
  std::vector<Group> groups_;                        // of the step under way
  std::vector<Part> parts_;                          // the same, in the order of the sequences
  std::vector<Progress> progress_;                   // with each stretch that threads share
  int num_alone_ = 0;                                // short steps to come that are left to one thread
  std::vector<Floats> globals_, locals_, scratch_;  // by worker, kept from step to step
};

}  // namespace forebay
