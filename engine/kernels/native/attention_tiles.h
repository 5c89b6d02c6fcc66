// Attention over a bfloat16 cache by tile registers: 16 rows times 16 slots or 16 value dimensions at once.
//
// Queries and weights are split in two bfloat16, x = high + low, so that no more is lost than by rounding once to 16
// bits of mantissa; sums are float32.
#pragma once

#include <vector>

#include "attention_span.h"
#include "tiles.h"

namespace bb {

constexpr int TILE_DEPTH = 32;  // bfloat16 in a row of a tile

// One thread's buffers, and the shape of its tile registers.
class AttentionTiles {
public:
    static bool fit(int dim) { return dim % TILE_DEPTH == 0; }
    // Rows that a result must have room for.
    static int padded(int rows) {
        return !HAS_TILES || rows < TILE_HEIGHT ? rows : ceil_div(rows, TILE_HEIGHT) * TILE_HEIGHT;
    }

    void take_queries(const float* q, int rows, int dim);  // [rows, dim], for the calls of `attend` until the next
    template <class VisibleTo>
    void attend(const Span& span, VisibleTo&& visible_to, Partial result);  // visible_to(row) -> Visible
    void release();                                                          // the registers

private:
    struct alignas(64) Line {
        uint16_t at[TILE_DEPTH];
    };
    static constexpr int ROW = SPAN + LANES;  // floats of a row of scores: a power of two would crowd a few cache sets
    static constexpr int PAIRS = SUB_BLOCKS / 2;

    Line* queries(int tile, int part, bool is_low) {
        return queries_.data() + ((int64_t(tile) * (dim_ / TILE_DEPTH) + part) * 2 + is_low) * TILE_HEIGHT;
    }
    Line* values(int pair, int column) {
        return values_.data() + (int64_t(pair) * (dim_ / LANES) + column) * TILE_HEIGHT;
    }
    void copy_values(const Span& span);
    template <int WIDTH>
    void score(const Span& span, int tile, int sub);
    static void split_row(float* scores, const Span& span, Visible visible, float& peak, float& total);
    template <int WIDTH>
    void weigh(const Span& span, int column, float* out);

    std::vector<Line> queries_;  // [rows / 16][dim / 32][high, low][16 rows]
    std::vector<Line> values_;   // [pairs of sub-blocks][dim / 16][16 pairs of slots]: [16 d][2 slots]
    std::vector<float> scores_;  // [16][ROW]; later [16][PAIRS][high, low][32 slots] bfloat16
    int rows_ = 0, dim_ = 0, height_ = 0;
};

#ifdef BB_TILES

// 32 floats as bfloat16 of their upper bits and of the rest.
BB_INLINE void store_split(F first, F second, void* high, void* low) {
    const __m512 mask = _mm512_castsi512_ps(_mm512_set1_epi32(int(0xffff0000u)));
    const __m512 a = _mm512_and_ps(first.v, mask), b = _mm512_and_ps(second.v, mask);
    const auto pack = [](__m512 x, __m512 y) __attribute__((always_inline)) {
        return (__m512i)_mm512_cvtne2ps_pbh(y, x);
    };
    _mm512_storeu_si512(high, pack(a, b));
    _mm512_storeu_si512(low, pack(_mm512_sub_ps(first.v, a), _mm512_sub_ps(second.v, b)));
}

inline void AttentionTiles::take_queries(const float* q, int rows, int dim) {
    rows_ = rows, dim_ = dim;
    const int tiles = ceil_div(rows, TILE_HEIGHT), parts = dim / TILE_DEPTH;
    grow(queries_, int64_t(tiles) * parts * 2 * TILE_HEIGHT);
    grow(values_, int64_t(PAIRS) * (dim / LANES) * TILE_HEIGHT);
    grow(scores_, TILE_HEIGHT * ROW);
    for (int row = 0; row < rows; row++)
        for (int part = 0; part < parts; part++) {
            const float* from = q + row * dim + part * TILE_DEPTH;
            Line* high = queries(row / TILE_HEIGHT, part, false) + row % TILE_HEIGHT;
            store_split(load(from), load(from + LANES), high, high + TILE_HEIGHT);
        }
    const int height = std::min(rows, TILE_HEIGHT);
    if (height == height_) return;
    const TileShapes shapes = TileShapes{}.set(0, 5, height, 64).set(6, 7, TILE_HEIGHT, 64);
    Tiles::shape(shapes);
    height_ = height;
}

inline void AttentionTiles::release() {
    if (height_) Tiles::release();
    height_ = 0;
}

// Two sub-blocks of values, one below the other, as a tile has them; zeros where there is nothing. On the way keys and
// later values are fetched: few rows wait for memory.
inline void AttentionTiles::copy_values(const Span& span) {
    constexpr int SLOT_PAIRS = SLOTS / 2, AHEAD = 2;
    const int64_t bytes = int64_t(dim_) * SLOTS * 2;
    const bool fetches = rows_ < TILE_HEIGHT;
    for (int sub = span.begin; fetches && sub < std::min(span.begin + AHEAD, span.end); sub++)
        prefetch(span.values[sub], bytes);
    for (int pair = span.begin / 2; pair < ceil_div(span.end, 2); pair++)
        for (int half = 0; half < 2; half++) {
            const int sub = 2 * pair + half, slots = std::min(SLOTS, span.slots - sub * SLOTS);
            const bool is_there = sub >= span.begin && sub < span.end;
            if (fetches && is_there) {
                prefetch(span.keys[sub], bytes);
                if (sub + AHEAD < span.end) prefetch(span.values[sub + AHEAD], bytes);
            }
            for (int column = 0; column < dim_ / LANES; column++) {
                Line* to = values(pair, column) + half * SLOT_PAIRS;
                const uint8_t* from = span.values[is_there ? sub : span.begin] + column * sizeof(Line) * SLOT_PAIRS;
                if (is_there && slots == SLOTS) {
                    each<SLOT_PAIRS>([&](auto p) {
                        _mm512_store_si512(to + p, _mm512_loadu_si512(from + p * sizeof(Line)));
                    });
                    continue;
                }
                for (int p = 0; p < SLOT_PAIRS; p++) {  // a slot that nobody wrote may hold anything
                    const int left = is_there ? slots - 2 * p : 0;
                    const __mmask32 kept = left >= 2 ? ~0u : left == 1 ? 0x55555555u : 0;
                    _mm512_store_si512(to + p, _mm512_maskz_loadu_epi16(kept, from + p * sizeof(Line)));
                }
            }
        }
}

// Adds to sums 0 … WIDTH - 1 the products of tiles 4 and 5, high and low, with those at `factor(n)`.
template <int WIDTH, class Factor>
BB_INLINE void add_tile_products(Factor&& factor) {
    each<WIDTH>([&](auto n) {
        constexpr int B = 6 + n % 2;
        tile_load<B>(factor(n), CACHE_LINE);
        tile_dot_bf16<n, 4, B>();
        tile_dot_bf16<n, 5, B>();
    });
}

template <int WIDTH>
inline void AttentionTiles::score(const Span& span, int tile, int sub) {
    each<WIDTH>([&](auto n) { tile_zero<n>(); });
    for (int part = 0; part < dim_ / TILE_DEPTH; part++) {
        tile_load<4>(queries(tile, part, false), sizeof(Line));
        tile_load<5>(queries(tile, part, true), sizeof(Line));
        add_tile_products<WIDTH>(
            [&](int n) { return span.keys[sub + n] + int64_t(part) * TILE_HEIGHT * sizeof(Line); });
    }
    each<WIDTH>([&](auto n) { tile_store<n>(&scores_[size_t(sub + n) * SLOTS], ROW * sizeof(float)); });
}

// Scores become weights 2^(score - peak), in the order of the member `scores_`; exact zeros where nothing is visible.
inline void AttentionTiles::split_row(float* scores, const Span& span, Visible visible, float& peak, float& total) {
    const F base = hide_and_find_peak(scores, span, visible, peak);
    F sum = zero();
    const auto weight = [&](int sub) __attribute__((always_inline)) {
        if (sub < span.begin || sub >= span.end) return zero();
        const F raised = exp2(bb::sub(load(scores + sub * SLOTS), base));
        sum = add(sum, raised);
        return raised;
    };
    for (int pair = span.begin / 2; pair < ceil_div(span.end, 2); pair++) {
        const F first = weight(2 * pair), second = weight(2 * pair + 1);
        float* at = scores + pair * 2 * SLOTS;
        store_split(first, second, at, at + SLOTS);
    }
    total = sum_lanes(sum);
}

template <int WIDTH>
inline void AttentionTiles::weigh(const Span& span, int column, float* out) {
    each<WIDTH>([&](auto c) { tile_zero<c>(); });
    for (int pair = span.begin / 2; pair < ceil_div(span.end, 2); pair++) {
        const float* weights = &scores_[size_t(pair) * 2 * SLOTS];
        tile_load<4>(weights, ROW * sizeof(float));
        tile_load<5>(weights + SLOTS, ROW * sizeof(float));
        add_tile_products<WIDTH>([&](int c) { return values(pair, column + c); });
    }
    each<WIDTH>([&](auto c) { tile_store<c>(out + (column + c) * LANES, dim_ * int64_t(sizeof(float))); });
}

template <class VisibleTo>
void AttentionTiles::attend(const Span& span, VisibleTo&& visible_to, Partial result) {
    copy_values(span);
    for (int first = 0; first < rows_; first += TILE_HEIGHT) {
        int sub = span.begin;
        for (; sub + 4 <= span.end; sub += 4) score<4>(span, first / TILE_HEIGHT, sub);
        for (; sub < span.end; sub++) score<1>(span, first / TILE_HEIGHT, sub);
        for (int row = first; row < std::min(rows_, first + TILE_HEIGHT); row++)
            split_row(&scores_[size_t(row - first) * ROW], span, visible_to(row), result.peak[row], result.total[row]);
        float* out = result.out + first * dim_;
        int column = 0;
        for (; column + 4 <= dim_ / LANES; column += 4) weigh<4>(span, column, out);
        for (; column < dim_ / LANES; column += 2) weigh<2>(span, column, out);
    }
}

#endif

}  // namespace bb
