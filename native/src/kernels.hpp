// The kernels of one instruction set as a table of functions: what the program calls, and all it knows of them.
// Every function works on rows, and a row's result depends on nothing but that row (attention: that sequence).
#pragma once

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
  long (*packed_size)(int out, int in);
  void (*pack)(const float* weight, int out, int in, float* packed);
  long (*scratch)(int rows, int in);
  void (*run)(const LinearArgs&);
};

// One sequence, one head. q, k and v are [length, size] with a common row stride. bias [length, length] may be null.
struct AttentionArgs {
  const float *q, *k, *v;
  long stride;
  float* dst;
  long dst_stride;
  int length, size;
  float scale;
  const float* bias;
  long bias_stride;
  float* scratch;  // AttentionKernel::scratch(length, size) floats
};

struct AttentionKernel {
  long (*scratch)(int length, int size);
  void (*run)(const AttentionArgs&);
};

struct LayerNormArgs {
  const float* src;
  float* dst;  // may be src
  int rows, width;
  const float *weight, *bias;
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

struct Kernels {
  const char* name;
  int panel;      // columns of a packed panel
  int tile_rows;  // rows of the largest tile: cuts between row blocks are best made at its multiples
  const LinearKernel* linear[kPrecisions];  // by Precision; null where the processor lacks the instructions
  const AttentionKernel* attention[kPrecisions];  // by Precision, never null
  void (*layer_norm)(const LayerNormArgs&);
  void (*add)(const float* src, float* dst, int count);  // dst += src
  void (*activate)(Activation, float* values, int count);
  long (*max_sim_scratch)(int count);
  float (*max_sim)(const MaxSimArgs&);
};

// Null where the processor lacks the instructions.
const Kernels* plain_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();
const LinearKernel* avx512_bf16_linear();
const LinearKernel* avx512_int8_linear();
const AttentionKernel* avx512_bf16_attention();

inline constexpr long kFloatsPerLine = 16;
inline constexpr long round_up(long value, long unit) { return (value + unit - 1) / unit * unit; }

}  // namespace forebay
