// Products of integers for many rows, where registers are few: a block's weights are spread to 16 bits, or to bytes, once,
// and every tile of rows loads them from the first levels of the cache.
//
// The same integers as where each tile spreads them for itself, scaled and added up in the same order: the same bits.
#pragma once

#include <type_traits>
#include <vector>

#include "weights.h"

namespace bb {

// A group of k of 16 channels, as they are multiplied and what scales them.
template <int FORMAT>
struct alignas(64) WideGroup {
    using Weights = std::conditional_t<FORMAT == BB_INT4_A8, Quads, Pairs>;
    static constexpr int DEPTH = FORMAT == BB_INT4_A8 ? 4 : 2;  // of k, in one of them
    Weights weights[GROUP / DEPTH];
    float scale[LANES], minimum[LANES];
};

// Of no consequence but for speed. Below so many rows, spreading costs more than it saves.
template <int FORMAT>
constexpr int WIDENED_FROM_ROWS = FORMAT == BB_INT4_A8 ? 8 : 16;
template <int FORMAT>
constexpr bool CAN_WIDEN = REGISTERS < 32 && FORMAT >= BB_INT8 && (FORMAT != BB_INT4_A8 || BYTES_ARE_FASTER);

template <int FORMAT>
BB_INLINE void widen_group(const uint8_t* packed, WideGroup<FORMAT>& out) {
    if constexpr (FORMAT == BB_INT8) {
        for (int p = 0; p < GROUP / 2; p++, packed += 2 * LANES) out.weights[p] = load_int8_pairs(packed);
    } else {
        for (int p = 0; p < GROUP; p += 8, packed += 4 * LANES) {
            constexpr int COUNT = 8 / WideGroup<FORMAT>::DEPTH;
            typename WideGroup<FORMAT>::Weights eight[COUNT];
            if constexpr (FORMAT == BB_INT4) load_nibble_pairs(packed, eight);
            else load_nibble_quads(packed, eight);
            each<COUNT>([&](auto j) { out.weights[p / 8 * COUNT + j] = eight[j]; });
        }
    }
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(packed);
    store(out.scale, load_half(halves));
    if constexpr (FORMAT != BB_INT8) store(out.minimum, load_half(halves + LANES));
}

// A block of `w`; it lasts until the thread's next call.
template <int FORMAT>
const WideGroup<FORMAT>* widen_block(const BBWeight& w, int block) {
    static thread_local std::vector<WideGroup<FORMAT>> wide;
    const int groups = num_groups(w);
    grow(wide, groups);
    const uint8_t* packed = block_data(w, block);
    for (int g = 0; g < groups; g++) widen_group<FORMAT>(packed + g * group_bytes(FORMAT), wide[size_t(g)]);
    return wide.data();
}

// Adds a group's integer sum, scaled, to 16 outputs. They are added up where they are stored: the registers are for the
// integers.
template <int FORMAT>
BB_INLINE void scale_widened(I sum, const float* xs, const float* xsum, const WideGroup<FORMAT>& w, float* out) {
    F value = fma(to_float(sum), mul(set(*xs), load(w.scale)), load(out));
    if constexpr (FORMAT != BB_INT8) value = fma(set(*xsum), load(w.minimum), value);
    store(out, value);
}

// R rows of activations times a block, over all of k.
template <int FORMAT, int R, class Fetch>
BB_INLINE void multiply_widened(const int16_t* x, int64_t ldx, const float* xs, const float* xsum,
                                const WideGroup<FORMAT>* w, int groups, Fetch& next, float (*out)[LANES]) {
    each<R>([&](auto m) { store(out[m], zero()); });
    for (int g = 0; g < groups; g++, x += GROUP, xs++, xsum++, w++) {
        next.some();
        I sum[R];
        each<R>([&](auto m) { sum[m] = zero_int(); });
        for (int p = 0; p < GROUP / 2; p += 2)
            each<2>([&](auto j) {
                const Pairs pairs = w->weights[p + j];
                each<R>([&](auto m) { sum[m] = dot(sum[m], pairs, x + m * ldx + 2 * (p + j)); });
            });
        each<R>([&](auto m) { scale_widened(sum[m], xs + m * groups, xsum + m * groups, *w, out[m]); });
    }
}

// Activations as bytes, by groups: 256 high + low where one is split, else high alone.
struct Bytes {
    const int8_t *high, *low;
    const uint8_t* is_split;
};

template <int R, class Fetch>
BB_INLINE void multiply_wide_bytes(Bytes x, int64_t ldx, const float* xs, const float* xsum,
                                   const WideGroup<BB_INT4_A8>* w, int groups, Fetch& next, float (*out)[LANES]) {
    each<R>([&](auto m) { store(out[m], zero()); });
    for (int g = 0; g < groups; g++, x.high += GROUP, x.low += GROUP, x.is_split++, xs++, xsum++, w++) {
        next.some();
        QuadSum sum[R];
        const Quads first = w->weights[0];
        each<R>([&](auto m) { sum[m] = dot(first, x.high + m * ldx); });
        each<GROUP / 4 - 1>([&](auto i) {
            constexpr int q = i + 1;
            const Quads quads = w->weights[q];
            each<R>([&](auto m) { sum[m] = dot(sum[m], quads, x.high + m * ldx + 4 * q); });
        });
        const auto whole = [&](int m) __attribute__((always_inline)) {
            if (!x.is_split[m * groups]) return widen(sum[m]);
            const auto* again = w;  // the compiler would keep all weights it has loaded, on the stack
            asm("" : "+r"(again));
            QuadSum low = dot(again->weights[0], x.low + m * ldx);
            each<GROUP / 4 - 1>([&](auto i) {
                constexpr int q = i + 1;
                low = dot(low, again->weights[q], x.low + m * ldx + 4 * q);
            });
            return join(sum[m], low);
        };
        each<R>([&](auto m) { scale_widened(whole(m), xs + m * groups, xsum + m * groups, *w, out[m]); });
    }
}

}  // namespace bb
