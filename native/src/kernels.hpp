// The kernels of one instruction set as a table of functions: what the program calls, and all it knows of them.
// Every function works on rows, and a row's result depends on nothing but that row (attention: that sequence).
#pragma once
#include <cstdint>

namespace forebay {

enum class Activation : int { none, gelu_erf, gelu_tanh, relu, silu, tanh };

// What a linear layer multiplies: floats; bfloat16 with sums in floats; int8 weights with activations of 8 bits, each
// row quantized in groups of its own scale. What goes in, comes out and is added stays float.
enum class Precision : int { float32, bfloat16, int8 };
inline constexpr int kPrecisions = 3;

// dst[rows, out] = activation(src[rows, in] Wᵀ + bias [+ residual]); dst may be the residual's own rows.
struct LinearArgs {
  const float* src;
  long src_stride;
  const float* weight;  // packed by LinearKernel::pack
  const float* bias;    // padded to whole panels
  const float* residual;  // or null
  long residual_stride;
  float* dst;
  long dst_stride;
  int rows, in, out;
  Activation activation;
  float* scratch;  // LinearKernel::scratch(rows, in) floats
};

// Sizes are in floats, whatever is stored there.
struct LinearKernel {
  const char* form;  // by which instructions it multiplies, in words
  long (*packed_size)(int out, int in);
  void (*pack)(const float* weight, int out, int in, float* packed);
  long (*scratch)(int rows, int in);
  void (*run)(const LinearArgs&);
};

// Keys, or values, of the tokens of one text: rows of `size` floats. Those of the first `before` tokens are kept ones,
// each at its slot; the others stand one after the other.
struct TokenRows {
  const float* own;
  long stride;
  const float* kept;
  long kept_stride;
};

// Queries of one text, `rows` tokens from the token `first` on, and of `heads` heads that share keys and values.
// Query i sees key j < keys where j ≤ i if causal, and |i - j| < window if there is one (0: none). `bias` [heads,
// tokens, keys], added to the scaled scores, may be null. soft_cap c (0: none) makes c tanh(score / c) of scores.
struct AttentionArgs {
  const float* q;
  long q_stride, q_head;  // from token to token, from head to head
  TokenRows k, v;
  const std::int64_t* slots;
  int before;
  float* dst;
  long dst_stride, dst_head;
  int heads, first, rows, keys, size;
  float scale;
  bool is_causal;
  int window;
  float soft_cap;
  const float* bias;
  long bias_stride, bias_head;
  float* scratch;  // AttentionKernel::scratch(size, heads * rows) floats
};

struct AttentionKernel {
  Precision precision;  // of its products
  long (*scratch)(int size, int queries);
  void (*run)(const AttentionArgs&);
};

// dst = norm(src) * weight [+ bias] [+ residual]
struct NormArgs {
  const float* src;
  float* dst;  // may be src
  const float* residual;  // or null
  int rows, width;
  const float *weight, *bias;  // RMS norms read no bias
  float eps;
};

// The query's vectors against one document's. The query [count, size] is packed as a float weight.
struct MaxSimArgs {
  const float* query;
  int count, size;
  const float* document;  // [rows, size]
  long stride;
  int rows;
  float* scratch;  // max_sim_scratch(count) floats
};

// Heads of rows, in place: each is RMS-normalised if there is a weight [size], then the two halves of its first
// 2 * half numbers are rotated against each other by the angles of the row's position: table [positions, cosines | sines].
struct TurnArgs {
  float* head;
  long stride;
  int rows, heads, step, size;  // step: from head to head
  const float* weight;          // or null
  float eps;
  const float* table;             // or null
  const std::int64_t* positions;  // rows of the table
  int half;
};

// dst [rows, width] = activation(src[:, :width]) * src[:, width:]
struct GateArgs {
  const float* src;
  float* dst;
  int rows, width;
  Activation activation;
};

struct Kernels {
  const char* name;
  int panel;      // columns of a packed panel
  int tile_rows;  // rows of the largest tile: cuts between row blocks are best made at its multiples
  const LinearKernel* linear[kPrecisions];  // by Precision; null where there is none
  const AttentionKernel* attention[kPrecisions];  // by Precision, never null
  void (*layer_norm)(const NormArgs&);
  void (*rms_norm)(const NormArgs&);
  void (*turn)(const TurnArgs&);
  void (*gate)(const GateArgs&);
  void (*add)(const float* src, float* dst, int count);  // dst += src
  void (*activate)(Activation, float* values, int count);
  long (*max_sim_scratch)(int count);
  float (*max_sim)(const MaxSimArgs&);
};

// Null where the processor lacks the instructions. The basic ones make do with what every processor of the kind has;
// they are null where these are all it has, and the others the same.
const Kernels* plain_kernels();
const Kernels* avx2_kernels();
const Kernels* avx2_basic_kernels();
const Kernels* avx512_kernels();
const Kernels* avx512_basic_kernels();
const LinearKernel* avx_vnni_int8_linear();
const LinearKernel* avx512_bf16_linear();
const LinearKernel* avx512_int8_linear();
const AttentionKernel* avx512_bf16_attention();

inline constexpr long kFloatsPerLine = 16;
inline constexpr long round_up(long value, long unit) { return (value + unit - 1) / unit * unit; }

}  // namespace forebay
