// Products of integers for many rows, where registers are few: a block's weights are spread to 16 bits once, and every
// tile of rows loads them from the first levels of the cache.
//
// The same integers as where each tile spreads them for itself, scaled and added up in the same order: the same bits.
// Bytes (int4_a8) are as quickly spread as loaded.
#pragma once

#include <vector>

#include "weights.h"

namespace bb {

// A group of k of 16 channels, as they are multiplied and what scales them.
struct alignas(64) WideGroup {
    Pairs pairs[GROUP / 2];
    float scale[LANES], minimum[LANES];
};

// Of no consequence but for speed. Below so many rows, spreading costs more than it saves.
constexpr int WIDENED_FROM_ROWS = 16;
template <int FORMAT>
constexpr bool CAN_WIDEN = REGISTERS < 32 && (FORMAT == BB_INT8 || FORMAT == BB_INT4);

template <int FORMAT>
BB_INLINE void widen_group(const uint8_t* packed, WideGroup& out) {
    if constexpr (FORMAT == BB_INT8) {
        for (int p = 0; p < GROUP / 2; p++, packed += 2 * LANES) out.pairs[p] = load_int8_pairs(packed);
    } else {
        for (int p = 0; p < GROUP / 2; p += 4, packed += 4 * LANES) {
            Pairs pairs[4];
            load_nibble_pairs(packed, pairs);
            each<4>([&](auto j) { out.pairs[p + j] = pairs[j]; });
        }
    }
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(packed);
    store(out.scale, load_half(halves));
    if constexpr (FORMAT == BB_INT4) store(out.minimum, load_half(halves + LANES));
}

// A block of `w`; it lasts until the thread's next call.
template <int FORMAT>
const WideGroup* widen_block(const BBWeight& w, int block) {
    static thread_local std::vector<WideGroup> wide;
    const int groups = num_groups(w);
    grow(wide, groups);
    const uint8_t* packed = block_data(w, block);
    for (int g = 0; g < groups; g++) widen_group<FORMAT>(packed + g * group_bytes(FORMAT), wide[size_t(g)]);
    return wide.data();
}

// R rows of activations times a block, over all of k. Outputs are added up where they are stored: the registers are
// for the integers.
template <int FORMAT, int R, class Fetch>
BB_INLINE void multiply_widened(const int16_t* x, int64_t ldx, const float* xs, const float* xsum, const WideGroup* w,
                                int groups, Fetch& next, float (*out)[LANES]) {
    each<R>([&](auto m) { store(out[m], zero()); });
    for (int g = 0; g < groups; g++, x += GROUP, xs++, xsum++, w++) {
        next.some();
        I sum[R];
        each<R>([&](auto m) { sum[m] = zero_int(); });
        for (int p = 0; p < GROUP / 2; p += 2)
            each<2>([&](auto j) {
                const Pairs pairs = w->pairs[p + j];
                each<R>([&](auto m) { sum[m] = dot(sum[m], pairs, x + m * ldx + 2 * (p + j)); });
            });
        each<R>([&](auto m) {
            const F scale = mul(set(xs[m * groups]), load(w->scale));
            F value = fma(to_float(sum[m]), scale, load(out[m]));
            if constexpr (FORMAT == BB_INT4) value = fma(set(xsum[m * groups]), load(w->minimum), value);
            store(out[m], value);
        });
    }
}

}  // namespace bb
