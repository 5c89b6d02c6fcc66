// Products of integers by tile registers: a group of 16 rows times 16 channels at once.
//
// Activations are multiplied byte by byte, x = 256 high + low, which gives the same integers as the other kernels; they
// are scaled and added up in the same order, so the outputs are the same bits, too.
#pragma once

#include <algorithm>
#include <vector>

#include "tiles.h"
#include "weights.h"

namespace bb {

// What 16 rows of activations hold of a group of k: bytes, scales, and scales times sums. A matrix of them is
// [rows / 16][groups].
struct alignas(64) TileGroup {
    struct {
        int8_t high[GROUP];
        uint8_t low[GROUP];
    } rows[TILE_HEIGHT];
    float scale[TILE_HEIGHT], sum[TILE_HEIGHT];
};

// Values `first` … of a group (0 or 16), in the order of int4's nibbles or in their own.
void store_tile_row(TileGroup& out, int format, int row, int first, I x);

// Rows [begin, end) of `rows`, begin a multiple of 16, times blocks [first, last) of w. `make_fetch(block)` makes what
// fetches meanwhile, `finish(row, block, outputs)` takes a row's 16.
template <int FORMAT, class MakeFetch, class Finish>
void multiply_tiles(const BBWeight& w, const TileGroup* x, int rows, int begin, int end, int first, int last,
                    MakeFetch&& make_fetch, Finish&& finish);

#ifdef BB_TILES

inline void store_tile_row(TileGroup& out, int format, int row, int first, I x) {
    const auto bytes = [format](__m512i v) __attribute__((always_inline)) {
        const __m128i packed = _mm512_cvtepi32_epi8(v);  // the lowest byte of each
        return format == BB_INT8 ? packed : _mm_shuffle_epi8(packed, _mm_load_si128((const __m128i*)QUAD_ORDER));
    };
    auto& [high, low] = out.rows[row];
    _mm_store_si128((__m128i*)(high + first), bytes(_mm512_srai_epi32(x.v, 8)));
    _mm_store_si128((__m128i*)(low + first), bytes(x.v));
}

// A group of 16 channels as a tile: [8 quads of k][16 channels][4 k].
constexpr int QUAD_ROWS = GROUP / 4;
struct alignas(64) TileWeights {
    uint8_t quads[QUAD_ROWS][4 * LANES];
};

template <int FORMAT>
BB_INLINE void unpack_for_tile(const uint8_t* group, TileWeights& out) {
    if constexpr (FORMAT == BB_INT8) {
        alignas(64) static constexpr auto ORDER = [] {
            struct { int16_t at[2 * LANES]; } order{};
            for (int c = 0; c < LANES; c++) order.at[2 * c] = int16_t(c), order.at[2 * c + 1] = int16_t(LANES + c);
            return order;
        }();
        const __m512i order = _mm512_load_si512(ORDER.at);
        each<QUAD_ROWS>([&](auto q) {
            const __m512i two_pairs = _mm512_loadu_si512(group + q * 4 * LANES);
            _mm512_store_si512(out.quads[q], _mm512_permutexvar_epi16(order, two_pairs));
        });
    } else {
        each<QUAD_ROWS / 2>([&](auto e) {
            Quads quads[2];
            load_nibble_quads(group + e * 4 * LANES, quads);
            _mm512_store_si512(out.quads[2 * e], quads[0].v);
            _mm512_store_si512(out.quads[2 * e + 1], quads[1].v);
        });
    }
}

enum IntegerTile { HIGH_SUM, LOW_SUM, HIGH_BYTES, LOW_BYTES, WEIGHTS };

inline TileShapes integer_shapes(int rows) {
    TileShapes shapes;
    return shapes.set(HIGH_SUM, LOW_SUM, rows, 64)
        .set(HIGH_BYTES, LOW_BYTES, rows, GROUP)
        .set(WEIGHTS, WEIGHTS, QUAD_ROWS, 64);
}

struct alignas(64) TileSums {
    int32_t high[TILE_HEIGHT][LANES], low[TILE_HEIGHT][LANES];
};

// The first R rows of x times a block, over all of k; `packed` are the block's own bytes.
template <int FORMAT, int R, class Fetch>
BB_INLINE void multiply_by_tiles(const TileGroup* x, const TileWeights* w, const uint8_t* packed, int groups,
                                 Fetch& next, float (*out)[LANES]) {
    TileSums sums[2];
    F acc[R], scale = zero(), minimum = zero();
    each<R>([&](auto m) { acc[m] = zero(); });
    // A group is multiplied while the one before it is scaled, a quarter of the rows at a time: a processor looks ahead
    // over so many instructions and no more.
    const auto scale_rows = [&](auto quarter, int g) __attribute__((always_inline)) {
        constexpr int FIRST = quarter * R / 4, COUNT = (quarter + 1) * R / 4 - FIRST;
        const TileSums& s = sums[g % 2];
        each<COUNT>([&](auto i) {
            constexpr int m = FIRST + i;
            const __m512i high = _mm512_slli_epi32(_mm512_load_si512(s.high[m]), 8);
            const __m512i sum = _mm512_add_epi32(high, _mm512_load_si512(s.low[m]));
            acc[m] = fma(to_float(I{sum}), mul(set(x[g].scale[m]), scale), acc[m]);
            if (FORMAT != BB_INT8) acc[m] = fma(set(x[g].sum[m]), minimum, acc[m]);
        });
    };
    const auto step = [&](int g, auto multiplies, auto scales) __attribute__((always_inline)) {
        const auto& rows = x[g].rows;
        TileSums& to = sums[g % 2];
        if constexpr (scales) {
            next.some();
            const uint16_t* halves = reinterpret_cast<const uint16_t*>(packed + g * group_bytes(FORMAT)) -
                                     (FORMAT == BB_INT8 ? 1 : 2) * LANES;
            scale = load_half(halves);
            if (FORMAT != BB_INT8) minimum = load_half(halves + LANES);
        }
        const auto quarter = [&](auto number) __attribute__((always_inline)) {
            if constexpr (scales) scale_rows(number, g - 1);
        };
        if constexpr (multiplies) {
            tile_load<WEIGHTS>(&w[g], sizeof w->quads[0]);
            tile_load<HIGH_BYTES>(rows->high, sizeof *rows);
            tile_zero<HIGH_SUM>();
            tile_dot_signed<HIGH_SUM, HIGH_BYTES, WEIGHTS>();
        }
        quarter(std::integral_constant<int, 0>{});
        if constexpr (multiplies) {
            tile_load<LOW_BYTES>(rows->low, sizeof *rows);
            tile_zero<LOW_SUM>();
            tile_dot_unsigned<LOW_SUM, LOW_BYTES, WEIGHTS>();
        }
        quarter(std::integral_constant<int, 1>{});
        quarter(std::integral_constant<int, 2>{});
        if constexpr (multiplies) tile_store<HIGH_SUM>(to.high, sizeof to.high[0]);
        quarter(std::integral_constant<int, 3>{});
        if constexpr (multiplies) tile_store<LOW_SUM>(to.low, sizeof to.low[0]);
    };
    step(0, std::true_type{}, std::false_type{});
    for (int g = 1; g < groups; g++) step(g, std::true_type{}, std::true_type{});
    step(groups, std::false_type{}, std::true_type{});
    each<R>([&](auto m) { store(out[m], acc[m]); });
}

template <int FORMAT, class MakeFetch, class Finish>
void multiply_tiles(const BBWeight& w, const TileGroup* x, int rows, int begin, int end, int first, int last,
                    MakeFetch&& make_fetch, Finish&& finish) {
    static thread_local std::vector<TileWeights> unpacked;
    const int groups = num_groups(w);
    grow(unpacked, groups);
    const Tiles tiles(integer_shapes(std::min(TILE_HEIGHT, ceil_div(rows, 4) * 4)));
    for (int block = first; block < last; block++) {
        const uint8_t* packed = block_data(w, block);
        for (int g = 0; g < groups; g++) unpack_for_tile<FORMAT>(packed + g * group_bytes(FORMAT), unpacked[size_t(g)]);
        auto fetch = make_fetch(block);
        for (int row = begin; row < end; row += TILE_HEIGHT) {
            alignas(64) float out[TILE_HEIGHT][LANES];
            const int count = std::min(TILE_HEIGHT, end - row);
            const auto multiply = [&](auto r) {
                multiply_by_tiles<FORMAT, r>(x + int64_t(row / TILE_HEIGHT) * groups, unpacked.data(), packed, groups,
                                             fetch, out);
            };
            if (count > 12) multiply(std::integral_constant<int, 16>{});
            else if (count > 8) multiply(std::integral_constant<int, 12>{});
            else if (count > 4) multiply(std::integral_constant<int, 8>{});
            else multiply(std::integral_constant<int, 4>{});
            for (int m = 0; m < count; m++) finish(row + m, block, out[m]);
        }
    }
}

#endif

}  // namespace bb
