// The C interface: what Python passes and gets. Keep in step with library.py, which declares the same structs.
//
// Every function returns 0, or 1 with a one-line message in bb_error() (per thread). Sizes are elements unless a name
// says bytes; pointers are to contiguous memory of the stated shape; all activations are float32.
#pragma once

#include <cstdint>

#define BB_ABI_VERSION 6

extern "C" {

// How a weight's numbers are stored, in groups of 32 input channels of 16 output channels (weights.h).
enum BBFormat : int32_t {
    BB_FLOAT32 = 0,
    BB_BFLOAT16 = 1,
    BB_FLOAT16 = 2,
    BB_INT8 = 3,     // symmetric, float16 scale a group and channel; multiplied with int16 activations
    BB_INT4 = 4,     // float16 scale and minimum a group and channel; multiplied with int16 activations
    BB_INT4_A8 = 5,  // stored like BB_INT4; multiplied with int8 activations, int16 where they stand out
};

enum BBEpilogue : int32_t { BB_STORE = 0, BB_ADD = 1, BB_SWIGLU = 2 };

struct BBWeight {
    const void* data;  // packed
    const float* bias;  // [n] in the packed order, padded with zeros to whole blocks; may be null
    int64_t data_bytes;
    int32_t n, k;  // output and input channels
    int32_t format;
    int32_t gate_up;  // 1: the first n/2 channels are gates, the rest ups, interleaved by eights when packed
};

// A step as StepBatch describes it (engine/kernels/batch.py); all int32.
struct BBBatch {
    const int32_t *positions, *slots;          // [num_tokens]
    const int32_t* query_start;                // [num_rows + 1]
    const int32_t* seq_lens;                   // [num_rows]
    const int32_t* block_tables;               // [num_rows, table_width]
    int32_t num_tokens, num_rows, table_width, block_size;
    const int32_t* wanted;  // [num_wanted] tokens whose last hidden state is wanted, ascending; null: all of them
    int32_t num_wanted;
};

// One layer's keys and values: [num_blocks][num_kv_heads][key, value] of packed sub-blocks (attention.h), blocks
// `block_stride` bytes apart: other layers' may lie between them.
struct BBCache {
    void* data;
    int64_t data_bytes;  // from the first block to the end of the last
    int64_t block_stride;
    int32_t num_blocks, format;  // BB_FLOAT32, BB_BFLOAT16 or BB_INT8
};

struct BBAttention {
    int32_t num_heads, num_kv_heads, head_dim, window;  // window 0: everything before
    float scale, norm_eps;
    const float* cos_sin;  // [max_positions, head_dim]: cosines, then sines
    int32_t max_positions;
};

struct BBLayer {
    const float *input_norm, *post_attention_norm;
    const float *q_norm, *k_norm;  // [head_dim]; may be null
    BBWeight qkv, o, gate_up, down;
    BBCache cache;
    BBAttention attention;
};

}  // extern "C"
