// Sixteen lanes of float or int32, the same interface on every CPU, and what is built from it alone.
//
// `F` is 16 floats, `I` 16 int32, `Pairs` 16 channels x 2 int16, `Quads` 16 channels x 4 bytes. A specialisation
// supplies the primitives (simd_avx512.h, simd_avx2.h, simd_portable.h) and two reductions:
//   sum_lanes(x)  always as a balanced tree over lane i and lane i + n/2, so that no result depends on the variant
//   max_lanes(x)  the largest lane; NaN where any lane is NaN
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#define BB_INLINE inline __attribute__((always_inline))

namespace bb {

constexpr int LANES = 16;

// `Quads` hold the nibbles of each eight successive k in the order 0 4 1 5 2 6 3 7, so activations are stored in it:
//   store_int8_quads(p, x)      16 values as bytes
//   store_split_quads(h, l, x)  16 values of at most MOST_SPLIT as high and low bytes, x = 256 high + low
alignas(16) constexpr int8_t QUAD_ORDER[16] = {0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15};
constexpr int MOST_SPLIT = 127 * 256 + 127;

// Unrolls at compile time with constant indices: plain loops leave accumulators in memory with GCC.
template <int N, class Body>
BB_INLINE void each(Body&& body) {
    [&]<int... Index>(std::integer_sequence<int, Index...>) __attribute__((always_inline)) {
        (body(std::integral_constant<int, Index>{}), ...);
    }(std::make_integer_sequence<int, N>{});
}

BB_INLINE uint16_t to_bf16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t(bits >> 16 | 0x40);  // rounding must not turn NaN into Inf
    return uint16_t((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

BB_INLINE float from_bf16(uint16_t x) {
    const uint32_t bits = uint32_t(x) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

}  // namespace bb

#if defined(__AVX512BW__) && defined(__AVX512DQ__) && !defined(BB_PORTABLE)
#include "simd_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && !defined(BB_PORTABLE)
#include "simd_avx2.h"
#else
#include "simd_portable.h"
#endif

namespace bb {

constexpr int CACHE_LINE = 64;

// Into the second level: more loads can be under way than to the first, and what is in use there stays.
BB_INLINE void prefetch(const void* address, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += CACHE_LINE) __builtin_prefetch(static_cast<const char*>(address) + i, 0, 2);
}

// 2^x with a relative error of about 2e-7; exactly 0 below -126; NaN stays NaN.
BB_INLINE F exp2(F x) {
    const F floor = set(-126.0f), bounded = min(set(127.0f), max(floor, x));
    const I whole = round_to_int(bounded);
    const F part = sub(bounded, to_float(whole));
    F p = set(1.5403530e-4f);
    p = fma(p, part, set(1.3333558e-3f));
    p = fma(p, part, set(9.6181291e-3f));
    p = fma(p, part, set(5.5504109e-2f));
    p = fma(p, part, set(2.4022651e-1f));
    p = fma(p, part, set(6.9314718e-1f));
    p = fma(p, part, set(1.0f));
    return zero_where_less(add_exponent(p, whole), x, floor);
}

BB_INLINE float exp2(float x) {
    float lanes[LANES];
    store(lanes, exp2(set(x)));
    return lanes[0];
}

BB_INLINE F silu(F x) {
    return div(x, add(set(1.0f), exp2(mul(x, set(-1.44269504f)))));
}

// Calls body(std::integral_constant<int, R>, first_row) for rows [begin, end): tiles of First rows, then of the
// sizes in Rest.
template <int First, int... Rest, class Body>
BB_INLINE void tile_rows(int begin, int end, Body&& body) {
    for (; begin + First <= end; begin += First) body(std::integral_constant<int, First>{}, begin);
    if constexpr (sizeof...(Rest) > 0) tile_rows<Rest...>(begin, end, body);
}

}  // namespace bb
