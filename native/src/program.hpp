// An encoder as a list of operations on the rows of a flat batch, and how a step of it runs on several threads.
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
  const float* rows;
  long count;
  Source source;
};

struct Op {
  enum class Kind { embed, linear, layer_norm, attention, show };
  Kind kind;
  int src = -1, dst = -1, residual = -1;  // slots
  std::vector<Table> tables;                    // embed: the sum of one row of each
  std::shared_ptr<const PackedLinear> linear;   // linear
  Activation activation = Activation::none;     // linear
  Floats weight, bias;                          // layer_norm
  float eps = 0.0f;                             // layer_norm
  int num_heads = 0;                            // attention
  const AttentionKernel* attention = nullptr;   // attention
  int state = 0;                                // show: which layer's state this is
};

// One step. `sources` by Source; types may be null, which is row 0. `bias` [heads, rows, columns] may be null; it covers
// the longest sequence. `out` is [states, tokens, width] if every_state, otherwise [tokens, width], the last state.
struct Step {
  const std::int64_t* sources[3];
  const std::int64_t* borders;
  int num_seqs;
  const float* bias;
  long bias_head_stride, bias_row_stride;
  float* out;
  bool every_state;
  int threads;

  long tokens() const { return borders[num_seqs]; }
};

// How a step is cut: whole sequences in groups that are taken by whichever thread is free, each of which then runs all
// layers on its group; or, where that would leave threads idle, the rows of one group among all threads.
enum class Cut { automatic, groups, rows };

class Program {
 public:
  Program(const Kernels& kernels, std::vector<Slot> slots);
  Program(const Program&) = delete;
  void append(Op op);
  void run(const Step& step, Cut cut);
  const Kernels& kernels() const { return kernels_; }
  const std::vector<Slot>& slots() const { return slots_; }
  int num_states() const { return num_states_; }

 private:
  // An attention, or the operations between two of them.
  struct Stretch {
    int first, last;
    bool is_attention;
  };
  struct Group {
    int first_seq, last_seq;
    long first_row, rows;
  };
  struct Place;
  struct Run;

  void check(const Step& step) const;
  void make_groups(const Step& step);
  bool are_balanced(const Step& step) const;
  void reserve(const Step& step, bool by_rows);
  void run_group(const Step& step, const Group& group, int worker);
  void share_rows(Run& run, int worker);
  void run_rows(const Step& step, const Stretch& stretch, const Place& place, long first, long last) const;
  void run_op(const Step& step, const Op& op, const Place& place, long first, int rows) const;
  void attend(const Step& step, const Op& op, const Place& place, int seq, int head) const;

  const Kernels& kernels_;
  std::vector<Slot> slots_;
  std::vector<long> offsets_;  // of each slot, in floats a row
  long global_width_ = 0, local_width_ = 0;
  std::vector<Op> ops_;
  std::vector<Stretch> stretches_;
  int num_states_ = 0;
  std::vector<Group> groups_;                        // of the step under way
  std::vector<Floats> globals_, locals_, scratch_;  // by worker, kept from step to step
};

}  // namespace forebay
