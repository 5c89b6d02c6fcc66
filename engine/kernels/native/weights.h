// Geometry of packed weights: [ceil(channels / 16)] blocks of [ceil(k / 32)] groups, padded with zeros.
//
// A group holds 32 input channels k of 16 output channels c:
//   float32, float16   [32 k][16 c]
//   bfloat16           [16 pairs of k][16 c][2 k]
//   int8               [16 pairs of k][16 c][2 k] int8, then 16 float16 scales: w = scale * q
//   int4               [4 eights of k][16 c][4 bytes], then 16 float16 scales, 16 float16 minima:
//                      w = scale * q + minimum; of the 8 nibbles of the 4 bytes, counted from the lowest, nibble j is
//                      k 2j, nibble 4 + j is k 2j + 1
// The layout does not depend on the CPU.
#pragma once

#include "abi.h"
#include "simd.h"

namespace bb {

constexpr int GROUP = 32;

inline int ceil_div(int a, int b) { return (a + b - 1) / b; }
// Buffers live from call to call and never shrink.
template <class Buffer>
void grow(Buffer& buffer, int64_t size) {
    if (int64_t(buffer.size()) < size) buffer.resize(size_t(size));
}
constexpr int group_bytes(int format) {
    switch (format) {
        case BB_FLOAT32: return GROUP * LANES * 4;
        case BB_BFLOAT16:
        case BB_FLOAT16: return GROUP * LANES * 2;
        case BB_INT8: return GROUP * LANES + LANES * 2;
        default: return GROUP * LANES / 2 + LANES * 4;
    }
}
inline int num_groups(const BBWeight& w) { return ceil_div(w.k, GROUP); }
inline int padded_k(const BBWeight& w) { return num_groups(w) * GROUP; }
// Blocks pair eight gates with their eight ups.
inline int num_blocks(const BBWeight& w) { return w.gate_up ? ceil_div(w.n / 2, LANES / 2) : ceil_div(w.n, LANES); }
inline int64_t block_bytes(const BBWeight& w) { return int64_t(num_groups(w)) * group_bytes(w.format); }
inline int64_t packed_bytes(const BBWeight& w) { return num_blocks(w) * block_bytes(w); }
inline const uint8_t* block_data(const BBWeight& w, int block) {
    return static_cast<const uint8_t*>(w.data) + block * block_bytes(w);
}
// The row of the [n, k] matrix that a lane of a block holds, -1 for padding.
inline int row_of_lane(const BBWeight& w, int block, int lane) {
    if (!w.gate_up) return block * LANES + lane < w.n ? block * LANES + lane : -1;
    const int half = w.n / 2, channel = block * (LANES / 2) + lane % (LANES / 2);
    return channel >= half ? -1 : lane < LANES / 2 ? channel : half + channel;
}

// Two successive k of 16 channels.
template <int FORMAT>
constexpr int PAIR_BYTES = FORMAT == BB_FLOAT32 ? 8 * LANES : FORMAT == BB_INT8 ? 2 * LANES : 4 * LANES;
template <int FORMAT>
BB_INLINE F load_even(const uint8_t* p) {
    if constexpr (FORMAT == BB_FLOAT32) return load(reinterpret_cast<const float*>(p));
    else if constexpr (FORMAT == BB_FLOAT16) return load_half(reinterpret_cast<const uint16_t*>(p));
    else if constexpr (FORMAT == BB_INT8) return load_int8(p);  // a cache's, not a weight's
    else return load_bf16_even(reinterpret_cast<const uint16_t*>(p));
}
template <int FORMAT>
BB_INLINE F load_odd(const uint8_t* p) {
    if constexpr (FORMAT == BB_FLOAT32) return load(reinterpret_cast<const float*>(p) + LANES);
    else if constexpr (FORMAT == BB_FLOAT16) return load_half(reinterpret_cast<const uint16_t*>(p) + LANES);
    else if constexpr (FORMAT == BB_INT8) return load_int8(p + LANES);
    else return load_bf16_odd(reinterpret_cast<const uint16_t*>(p));
}

enum BBSource : int32_t { SOURCE_FLOAT32 = 0, SOURCE_BFLOAT16 = 1, SOURCE_FLOAT16 = 2 };

class Member;

// Packs [n, k] floats (rows `row_stride` elements apart) into `out`; quantizes where the format asks for it.
void pack_floats(Member& member, const void* source, int source_type, int64_t row_stride, const BBWeight& shape,
                 void* out);
// Packs finished codes[n, k] (int8, or 0 … 15 for int4) with float16 scales (and minima) [n, k / 32]; k a multiple of
// 32.
void pack_codes(Member& member, const int8_t* codes, const uint16_t* scales, const uint16_t* minima,
                const BBWeight& shape, void* out);
// Row `row` of the matrix as floats, into out[k].
void unpack_row(const BBWeight& w, int row, float* out);

}  // namespace bb
