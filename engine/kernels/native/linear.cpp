// Linear layers: rows are converted once for the weight's format, then multiplied tile by tile.
//
// A tile is a few rows times one or two blocks of 16 output channels, accumulated in registers over all of k in
// ascending order. So an output's sum runs in the same order in every tile shape, whatever rows are beside it.
#include "linear.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

namespace bb {
namespace {

// ---- activations ----

// x (normed) into y[padded_k], zeros at the end.
void convert_row(const float* x, const float* norm, float eps, int k, int padded, float* y) {
    F inverse = set(1.0f);
    const int whole = k / LANES * LANES, rest = k - whole;
    if (norm) {
        F squares = zero();
        for (int i = 0; i < whole; i += LANES) squares = fma(load(x + i), load(x + i), squares);
        if (rest) squares = fma(load_part(x + whole, rest), load_part(x + whole, rest), squares);
        inverse = set(1.0f / std::sqrt(sum_lanes(squares) / float(k) + eps));
    }
    const auto scaled = [&](F value, F weight) { return norm ? mul(mul(value, inverse), weight) : value; };
    for (int i = 0; i < whole; i += LANES) store(y + i, scaled(load(x + i), norm ? load(norm + i) : inverse));
    int end = whole;
    if (rest) {
        store(y + whole, scaled(load_part(x + whole, rest), norm ? load_part(norm + whole, rest) : inverse));
        end += LANES;
    }
    for (; end < padded; end += LANES) store(y + end, zero());
}

constexpr float SMALLEST = 1e-30f;  // below, a group counts as zero: the inverse of its scale would overflow

// A group of int4_a8 with a value of more than so many times its row's root mean square keeps 16 bits: rounded to 8, it
// would have errors as large as others' values. One group in six is split; KL to float32 falls to a sixth.
constexpr float OUTLIER = 4;

float root_mean_square(const float* y, int padded, int k) {
    F squares = zero();
    for (int i = 0; i < padded; i += LANES) squares = fma(load(y + i), load(y + i), squares);
    return std::sqrt(sum_lanes(squares) / float(k));
}

// The largest magnitude of one group of 32 values; NaN where any is.
float largest_of(const float* y) {
    const F first = load(y), second = load(y + LANES);
    // max passes on a NaN of its second argument only; the product with zero brings in one of the first.
    return max_lanes(fma(first, zero(), max(abs(first), abs(second))));
}

// One group of 32 values, none larger than `largest`, as integers of at most `top`, with the scale that gives the values
// back.
template <class Store>
void quantize_group(const float* y, float largest, float top, float& scale, float& sum, Store&& store_codes) {
    const F first = load(y), second = load(y + LANES);
    scale = largest / top;
    const F inverse = set(largest > SMALLEST ? top / largest : 0.0f);
    const I a = round_to_int(mul(first, inverse)), b = round_to_int(mul(second, inverse));
    sum = scale * sum_lanes(add(to_float(a), to_float(b)));
    store_codes(0, a);
    store_codes(LANES, b);
}

// How few rows are multiplied: the weights are read at the pace of memory, and each of them is used once or twice.
constexpr int FEW = 2;

// Of no consequence but for speed: the bits are the same.
constexpr int TILES_FROM_ROWS = 12;  // below, a tile is too empty
bool uses_tiles(int format, int64_t rows) { return HAS_TILES && format >= BB_INT8 && rows >= TILES_FROM_ROWS; }

// Of no consequence but for speed, too: whether int4's activations are multiplied as bytes or as 16 bits.
bool uses_bytes(int format, int64_t rows) {
    return format >= BB_INT4 && (rows <= FEW || (format == BB_INT4_A8 && BYTES_ARE_FASTER));
}

void prepare_row(const Linear& op, int row, Activations& out, std::vector<float>& scratch) {
    const int padded = padded_k(*op.w), groups = num_groups(*op.w), format = op.w->format;
    const int64_t at = int64_t(row) * padded;
    const bool is_float = format <= BB_FLOAT16;
    if (!is_float && int(scratch.size()) < padded) scratch.resize(size_t(padded));
    float* y = is_float ? out.values.data() + at : scratch.data();
    convert_row(op.x + row * op.ldx, op.norm, op.eps, op.w->k, padded, y);
    if (is_float) return;
    const bool has_bytes = uses_bytes(format, op.rows);
    const float most_of_byte = format == BB_INT4_A8 ? OUTLIER * root_mean_square(y, padded, op.w->k) : -1.0f;
    for (int g = 0; g < groups; g++) {
        const float largest = largest_of(y + g * GROUP);
        const bool is_byte = largest <= most_of_byte;
        const float top = is_byte ? 127 : format == BB_INT8 ? 32767 : MOST_SPLIT;
        if constexpr (HAS_TILES)
            if (uses_tiles(format, op.rows)) {
                TileGroup& tile = out.tiles[size_t(row / TILE_HEIGHT * groups + g)];
                const int r = row % TILE_HEIGHT;
                quantize_group(y + g * GROUP, largest, top, tile.scale[r], tile.sum[r],
                               [&](int i, I codes) { store_tile_row(tile, format, r, i, codes); });
                continue;
            }
        const int64_t first = at + g * GROUP, group = int64_t(row) * groups + g;
        if (has_bytes) out.is_split[size_t(group)] = !is_byte;
        quantize_group(y + g * GROUP, largest, top, out.scale[size_t(group)], out.sum[size_t(group)],
                       [&](int i, I codes) {
                           const size_t k = size_t(first + i);
                           if (!has_bytes) store_int16(&out.int16[k], codes);
                           else if (is_byte) store_int8_quads(&out.high[k], codes);
                           else store_split_quads(&out.high[k], &out.low[k], codes);
                       });
    }
}

// ---- micro-kernels: R rows times B blocks of 16 channels, added to acc ----

// Weights that are wanted soon, fetched a little with every group: all at once they would hold up the loads of this
// tile.

// Of many rows: the next blocks, in as many parts as this one has tiles and groups.
struct FetchParts {
    const uint8_t* at;
    int64_t step;

    BB_INLINE void some() {
        prefetch(at, step);
        at += step;
    }
    void skip(int groups) { at += step * groups; }
};

// Of few rows: in each of B neighbouring blocks the group AHEAD of the one at work; at their end, those of the next.
template <int FORMAT, int B>
struct FetchAhead {
    static constexpr int BYTES = group_bytes(FORMAT), AHEAD = std::max(1, 4096 / BYTES);
    const uint8_t* at;
    const uint8_t* then;
    int64_t block;
    int left;  // groups until `then`

    FetchAhead(const BBWeight& w, int first)
        : at(block_data(w, first) + std::min(AHEAD, num_groups(w)) * BYTES), then(block_data(w, first + B)),
          block(block_bytes(w)), left(num_groups(w) - std::min(AHEAD, num_groups(w))) {}
    BB_INLINE void some() {
        if (left-- == 0) at = then;
        each<B>([&](auto n) {
            each<(BYTES + CACHE_LINE - 1) / CACHE_LINE>([&](auto line) {
                __builtin_prefetch(at + n * block + line * CACHE_LINE, 0, 2);
            });
        });
        at += BYTES;
    }
    void skip(int) {}
};

template <int R, int B>
using Acc = F[R][B];

template <int FORMAT, int R, int B, class Fetch>
BB_INLINE void dot_float(const float* x, int64_t ldx, const uint8_t* w, int64_t block, int groups, Fetch& next,
                         Acc<R, B>& acc) {
    for (int k = 0; k < groups * GROUP; k += 2, w += PAIR_BYTES<FORMAT>) {
        if (k % GROUP == 0) next.some();
        F b[B];
        each<B>([&](auto n) { b[n] = load_even<FORMAT>(w + n * block); });
        each<R>([&](auto m) {
            const F a = set(x[m * ldx + k]);
            each<B>([&](auto n) { acc[m][n] = fma(a, b[n], acc[m][n]); });
        });
        each<B>([&](auto n) { b[n] = load_odd<FORMAT>(w + n * block); });
        each<R>([&](auto m) {
            const F a = set(x[m * ldx + k + 1]);
            each<B>([&](auto n) { acc[m][n] = fma(a, b[n], acc[m][n]); });
        });
    }
}

template <int R, int B, class Fetch>
BB_INLINE void dot_int8(const int16_t* x, int64_t ldx, const float* xs, const uint8_t* w, int64_t block, int groups,
                        Fetch& next, Acc<R, B>& acc) {
    for (int g = 0; g < groups; g++, x += GROUP, w += 2 * LANES) {
        next.some();
        I sum[R][B];
        each<R>([&](auto m) { each<B>([&](auto n) { sum[m][n] = zero_int(); }); });
        for (int p = 0; p < GROUP; p += 2, w += 2 * LANES) {
            Pairs b[B];
            each<B>([&](auto n) { b[n] = load_int8_pairs(w + n * block); });
            each<R>([&](auto m) { each<B>([&](auto n) { sum[m][n] = dot(sum[m][n], b[n], x + m * ldx + p); }); });
        }
        F scale[B];
        each<B>([&](auto n) { scale[n] = load_half(reinterpret_cast<const uint16_t*>(w + n * block)); });
        each<R>([&](auto m) {
            const F a = set(xs[m * groups + g]);
            each<B>([&](auto n) { acc[m][n] = fma(to_float(sum[m][n]), mul(a, scale[n]), acc[m][n]); });
        });
    }
}

// Adds scale * integer sum + minimum * activation sum of one int4 group.
template <int R, int B, class Sums>
BB_INLINE void scale_int4(const Sums& sum, const uint8_t* tail, int64_t block, const float* xs, const float* xsum,
                          int groups, Acc<R, B>& acc) {
    F scale[B], minimum[B];
    each<B>([&](auto n) {
        const uint16_t* halves = reinterpret_cast<const uint16_t*>(tail + n * block);
        scale[n] = load_half(halves);
        minimum[n] = load_half(halves + LANES);
    });
    each<R>([&](auto m) {
        const F a = set(xs[m * groups]), total = set(xsum[m * groups]);
        each<B>([&](auto n) {
            acc[m][n] = fma(total, minimum[n], fma(to_float(sum(m, n)), mul(a, scale[n]), acc[m][n]));
        });
    });
}

template <int R, int B, class Fetch>
BB_INLINE void dot_int4(const int16_t* x, int64_t ldx, const float* xs, const float* xsum, const uint8_t* w,
                        int64_t block, int groups, Fetch& next, Acc<R, B>& acc) {
    for (int g = 0; g < groups; g++, x += GROUP, w += 4 * LANES) {
        next.some();
        I sum[R][B];
        each<R>([&](auto m) { each<B>([&](auto n) { sum[m][n] = zero_int(); }); });
        for (int p = 0; p < GROUP; p += 8, w += 4 * LANES) {
            Pairs b[B][4];
            each<B>([&](auto n) { load_nibble_pairs(w + n * block, b[n]); });
            each<4>([&](auto j) {
                each<R>([&](auto m) {
                    each<B>([&](auto n) { sum[m][n] = dot(sum[m][n], b[n][j], x + m * ldx + p + 2 * j); });
                });
            });
        }
        scale_int4<R, B>([&](int m, int n) { return sum[m][n]; }, w, block, xs + g, xsum + g, groups, acc);
    }
}

// Activations as bytes, all of them two: the nibbles need not be widened, which counts where each is used once or twice.
template <int R, int B, class Fetch>
BB_INLINE void dot_int4_split(Bytes x, int64_t ldx, const float* xs, const float* xsum, const uint8_t* w, int64_t block,
                              int groups, Fetch& next, Acc<R, B>& acc) {
    for (int g = 0; g < groups; g++, w += 4 * LANES) {
        next.some();
        QuadSum high[R][B], low[R][B];
        each<R>([&](auto m) { each<B>([&](auto n) { high[m][n] = low[m][n] = zero_quads(); }); });
        for (int p = 0; p < GROUP; p += 8, w += 4 * LANES, x.high += 8, x.low += 8) {
            Quads b[B][2];
            each<B>([&](auto n) { load_nibble_quads(w + n * block, b[n]); });
            each<2>([&](auto j) {
                each<R>([&](auto m) {
                    each<B>([&](auto n) {
                        high[m][n] = dot(high[m][n], b[n][j], x.high + m * ldx + 4 * j);
                        low[m][n] = dot(low[m][n], b[n][j], x.low + m * ldx + 4 * j);
                    });
                });
            });
        }
        scale_int4<R, B>([&](int m, int n) { return join(high[m][n], low[m][n]); }, w, block, xs + g, xsum + g, groups,
                         acc);
    }
}

// A group's weights times a row's bytes.
BB_INLINE QuadSum dot_group(const int8_t* x, const uint8_t* w) {
    QuadSum sum = zero_quads();
    each<GROUP / 8>([&](auto p) {
        Quads b[2];
        load_nibble_quads(w + p * 4 * LANES, b);
        each<2>([&](auto j) { sum = dot(sum, b[j], x + 8 * p + 4 * j); });
    });
    return sum;
}

// Few groups are split: their low bytes are multiplied afterwards.
template <int R, int B, class Fetch>
BB_INLINE void dot_int4_a8(Bytes x, int64_t ldx, const float* xs, const float* xsum, const uint8_t* w, int64_t block,
                           int groups, Fetch& next, Acc<R, B>& acc) {
    for (int g = 0; g < groups; g++, x.high += GROUP, x.low += GROUP, x.is_split++, w += group_bytes(BB_INT4)) {
        next.some();
        QuadSum sum[R][B];
        each<R>([&](auto m) { each<B>([&](auto n) { sum[m][n] = zero_quads(); }); });
        each<GROUP / 8>([&](auto p) {
            Quads b[B][2];
            each<B>([&](auto n) { load_nibble_quads(w + n * block + p * 4 * LANES, b[n]); });
            each<2>([&](auto j) {
                each<R>([&](auto m) {
                    each<B>([&](auto n) { sum[m][n] = dot(sum[m][n], b[n][j], x.high + m * ldx + 8 * p + 4 * j); });
                });
            });
        });
        const auto whole = [&](int m, int n) __attribute__((always_inline)) {
            if (!x.is_split[m * groups]) return widen(sum[m][n]);
            return join(sum[m][n], dot_group(x.low + m * ldx, w + n * block));
        };
        scale_int4<R, B>(whole, w + GROUP / 2 * LANES, block, xs + g, xsum + g, groups, acc);
    }
}

template <int FORMAT, int R, int B, class Fetch>
BB_INLINE void multiply(const Activations& a, const BBWeight& w, int row, int block, Fetch& next, Acc<R, B>& acc) {
    const int groups = num_groups(w);
    const int64_t ldx = padded_k(w), at = row * ldx, scales = int64_t(row) * groups, stride = block_bytes(w);
    const uint8_t* data = block_data(w, block);
    if constexpr (FORMAT <= BB_FLOAT16) dot_float<FORMAT, R, B>(&a.values[at], ldx, data, stride, groups, next, acc);
    if constexpr (FORMAT == BB_INT8)
        dot_int8<R, B>(&a.int16[at], ldx, &a.scale[scales], data, stride, groups, next, acc);
    constexpr bool is_few = !std::is_same_v<Fetch, FetchParts>;
    if constexpr (FORMAT == BB_INT4 && is_few)
        dot_int4_split<R, B>(a.bytes(at, scales), ldx, &a.scale[scales], &a.sum[scales], data, stride, groups, next, acc);
    if constexpr (FORMAT == BB_INT4 && !is_few)
        dot_int4<R, B>(&a.int16[at], ldx, &a.scale[scales], &a.sum[scales], data, stride, groups, next, acc);
    if constexpr (FORMAT == BB_INT4_A8)
        dot_int4_a8<R, B>(a.bytes(at, scales), ldx, &a.scale[scales], &a.sum[scales], data, stride, groups, next, acc);
}

// ---- epilogue and loops ----

// Writes one row's 16 channels of a block.
BB_INLINE void finish(F value, const Linear& op, int row, int block) {
    const BBWeight& w = *op.w;
    if (w.bias) value = add(value, load(w.bias + block * LANES));
    float* y = op.y + row * op.ldy;
    if (op.epilogue == BB_SWIGLU) {  // eight gates and their eight ups become eight outputs
        const F product = mul(silu(value), upper_half_down(value));
        const int at = block * (LANES / 2), count = std::min(LANES / 2, w.n / 2 - at);
        return count == LANES / 2 ? store_lower_half(y + at, product) : store_part(y + at, product, count);
    }
    const int at = block * LANES, count = std::min(LANES, w.n - at);
    const bool is_whole = count >= LANES;
    if (op.epilogue == BB_ADD) value = add(is_whole ? load(y + at) : load_part(y + at, count), value);
    if (is_whole) store(y + at, value);
    else store_part(y + at, value, count);
}

constexpr int PANEL_ROWS = 96;

// The largest outputs of a member's current item, lane by lane; read out when the item is done.
struct Lanes {
    alignas(64) float value[PANEL_ROWS][LANES];
    alignas(64) int32_t block[PANEL_ROWS][LANES];

    void clear(int rows) {
        for (int row = 0; row < rows; row++)
            for (int lane = 0; lane < LANES; lane++) {
                value[row][lane] = -std::numeric_limits<float>::infinity();
                block[row][lane] = -1;
            }
    }
    BB_INLINE void take(int row, int at, const float (&outputs)[LANES]) {
        for (int lane = 0; lane < LANES; lane++) {  // a plain loop: the compiler makes it a comparison and two blends
            const bool is_larger = outputs[lane] > value[row][lane];
            value[row][lane] = is_larger ? outputs[lane] : value[row][lane];
            block[row][lane] = is_larger ? at : block[row][lane];
        }
    }
    Leader leader(int row) const {
        Leader best{-std::numeric_limits<float>::infinity(), -1};
        for (int lane = 0; lane < LANES; lane++) {
            if (block[row][lane] < 0) continue;
            const Leader other{value[row][lane], block[row][lane] * LANES + lane};
            const bool is_first = best.channel < 0 || other.channel < best.channel;
            if (other.value > best.value || (other.value == best.value && is_first)) best = other;
        }
        return best;
    }
};
thread_local Lanes lanes;

void compare(const Linear& op, int row, int block, float (&outputs)[LANES]) {
    const BBWeight& w = *op.w;
    if (w.bias) store(outputs, add(load(outputs), load(w.bias + block * LANES)));
    for (int lane = w.n - block * LANES; lane < LANES; lane++) outputs[lane] = -std::numeric_limits<float>::infinity();
    lanes.take(row % PANEL_ROWS, block, outputs);
}

BB_INLINE void finish_row(const Linear& op, int row, int block, float (&outputs)[LANES]) {
    if (op.epilogue == LEADERS) compare(op, row, block, outputs);
    else finish(load(outputs), op, row, block);
}

template <int FORMAT, int R, int B, class Fetch>
__attribute__((noinline)) void tile(const Linear& op, const Activations& a, int row, int block, Fetch next) {
    alignas(64) float sums[R][B][LANES];  // the epilogue reads them from here: on acc it would cost its registers
    {
        Acc<R, B> acc;
        each<R>([&](auto m) { each<B>([&](auto n) { acc[m][n] = zero(); }); });
        multiply<FORMAT, R, B>(a, *op.w, row, block, next, acc);
        each<R>([&](auto m) { each<B>([&](auto n) { store(sums[m][n], acc[m][n]); }); });
    }
    for (int m = 0; m < R; m++)
        for (int n = 0; n < B; n++) finish_row(op, row + m, block + n, sums[m][n]);
}

template <int FORMAT, int R>
__attribute__((noinline)) void wide_tile(const Linear& op, const Activations& a, int row, int block,
                                         const WideGroup<FORMAT>* w, FetchParts next) {
    alignas(64) float sums[R][LANES];
    const int groups = num_groups(*op.w);
    const int64_t ldx = padded_k(*op.w), at = row * ldx, scales = int64_t(row) * groups;
    const float *xs = &a.scale[scales], *xsum = &a.sum[scales];
    if constexpr (FORMAT == BB_INT4_A8)
        multiply_wide_bytes<R>(a.bytes(at, scales), ldx, xs, xsum, w, groups, next, sums);
    else multiply_widened<FORMAT, R>(&a.int16[at], ldx, xs, xsum, w, groups, next, sums);
    for (int m = 0; m < R; m++) finish_row(op, row + m, block, sums[m]);
}

// Rows [begin, end) times blocks [block, block + B), in the tallest tiles that the registers hold.
template <int FORMAT, int B, class Fetch>
void panel(const Linear& op, const Activations& a, int begin, int end, int block, Fetch next) {
    const auto call = [&](auto rows, int row) {
        tile<FORMAT, rows, B>(op, a, row, block, next);
        next.skip(num_groups(*op.w));
    };
    constexpr bool is_float = FORMAT <= BB_FLOAT16;
    if constexpr (!std::is_same_v<Fetch, FetchParts>) tile_rows<FEW, 1>(begin, end, call);
    else if constexpr (REGISTERS >= 32 && is_float) tile_rows<12, 8, 6, 4, 3, 2, 1>(begin, end, call);
    else if constexpr (REGISTERS >= 32) tile_rows<8, 6, 4, 3, 2, 1>(begin, end, call);
    else if constexpr (REGISTERS >= 8 && is_float) tile_rows<6, 4, 3, 2, 1>(begin, end, call);
    else if constexpr (REGISTERS >= 8 && FORMAT == BB_INT4_A8) tile_rows<4, 3, 2, 1>(begin, end, call);
    else if constexpr (REGISTERS >= 8) tile_rows<3, 2, 1>(begin, end, call);
    else tile_rows<2, 1>(begin, end, call);
}

// Of AVX2's 16 registers, four are left for weights, an activation and a product; bytes are summed in half as many
// and have more to do besides.
template <int FORMAT>
constexpr int WIDE_ROWS = FORMAT == BB_INT4_A8 ? 4 : 6;
constexpr int BLOCKS_PER_TILE = REGISTERS >= 32 ? 2 : 1;
constexpr int FETCH_OWN_BYTES = 64 << 10, FETCH_OWN_STEP = 8 * CACHE_LINE;
constexpr int FETCH_FROM_ROWS = BLOCKS_PER_TILE > 1 ? 1 : 3;  // the hardware keeps up with one stream and few rows
constexpr int ITEMS_PER_THREAD = 16;

int blocks_per_chunk(const BBWeight& w, int team_size) {
    const int share = std::max(1, num_blocks(w) / (ITEMS_PER_THREAD * team_size));
    return ceil_div(share, BLOCKS_PER_TILE) * BLOCKS_PER_TILE;
}

// While a number of blocks is multiplied, as many after them are fetched, a share with each tile of rows.
FetchParts fetch_next(const BBWeight& w, int block, int count, int begin, int end, int tile_rows) {
    const bool fetches = end - begin >= FETCH_FROM_ROWS && block + 2 * count <= num_blocks(w);
    const int64_t bytes = block_bytes(w) * count, steps = int64_t(ceil_div(end - begin, tile_rows)) * num_groups(w);
    const int64_t step = ceil_div(int(bytes / steps), CACHE_LINE) * CACHE_LINE;
    return {block_data(w, block + count), fetches ? step : 0};
}

// Blocks [first, last) for rows [begin, end).
template <int FORMAT, int B>
int multiply_blocks(const Linear& op, const Activations& a, int begin, int end, int first, int last) {
    const BBWeight& w = *op.w;
    int block = first;
    if (op.rows <= FEW) {
        for (; block + B <= last; block += B)
            panel<FORMAT, B>(op, a, begin, end, block, FetchAhead<FORMAT, B>(w, block));
        return block;
    }
    for (; block + B <= last; block += B)
        panel<FORMAT, B>(op, a, begin, end, block, fetch_next(w, block, B, begin, end, 8));
    return block;
}

// The same by weights that are widened once for all of the rows.
template <int FORMAT>
void multiply_wide_blocks(const Linear& op, const Activations& a, int begin, int end, int first, int last) {
    const int groups = num_groups(*op.w);
    for (int block = first; block < last; block++) {
        const auto* w = widen_block<FORMAT>(*op.w, block);
        FetchParts next = fetch_next(*op.w, block, 1, begin, end, WIDE_ROWS<FORMAT>);
        tile_rows<WIDE_ROWS<FORMAT>, 4, 3, 2, 1>(begin, end, [&](auto rows, int row) {
            wide_tile<FORMAT, rows>(op, a, row, block, w, next);
            next.skip(groups);
        });
    }
}

template <int FORMAT>
void multiply_item(const Linear& op, const Activations& a, int begin, int end, int first, int last) {
    if constexpr (HAS_TILES && FORMAT >= BB_INT8) {
        if (uses_tiles(FORMAT, op.rows))
            return multiply_tiles<FORMAT>(
                *op.w, a.tiles.data(), op.rows, begin, end, first, last,
                [&](int block) { return fetch_next(*op.w, block, 1, begin, end, TILE_HEIGHT); },
                [&](int row, int block, float (&outputs)[LANES]) { finish_row(op, row, block, outputs); });
    }
    if constexpr (CAN_WIDEN<FORMAT>) {
        if (end - begin >= WIDENED_FROM_ROWS<FORMAT>) return multiply_wide_blocks<FORMAT>(op, a, begin, end, first, last);
    }
    const int rest = multiply_blocks<FORMAT, BLOCKS_PER_TILE>(op, a, begin, end, first, last);
    if (BLOCKS_PER_TILE > 1) multiply_blocks<FORMAT, 1>(op, a, begin, end, rest, last);
}

template <int FORMAT>
void multiply_all(Member& member, const Linear& op, const Activations& a) {
    const BBWeight& w = *op.w;
    const int blocks = num_blocks(w), chunk = blocks_per_chunk(w, member.team_size());
    const int chunks = count_chunks(w, member.team_size());
    const auto body = [&](int item) {
        const int begin = item / chunks * PANEL_ROWS, end = std::min(op.rows, begin + PANEL_ROWS);
        const int first = item % chunks * chunk, last = std::min(blocks, first + chunk);
        if (op.epilogue == LEADERS) lanes.clear(end - begin);
        multiply_item<FORMAT>(op, a, begin, end, first, last);
        if (op.epilogue != LEADERS) return;
        for (int row = begin; row < end; row++)
            op.leaders[int64_t(item % chunks) * op.rows + row] = lanes.leader(row - begin);
    };
    member.share(ceil_div(op.rows, PANEL_ROWS) * chunks, body, FetchOwn(member, op.next));
}

void multiply_all(Member& member, const Linear& op, const Activations& a) {
    switch (op.w->format) {
        case BB_FLOAT32: return multiply_all<BB_FLOAT32>(member, op, a);
        case BB_BFLOAT16: return multiply_all<BB_BFLOAT16>(member, op, a);
        case BB_FLOAT16: return multiply_all<BB_FLOAT16>(member, op, a);
        case BB_INT8: return multiply_all<BB_INT8>(member, op, a);
        case BB_INT4: return multiply_all<BB_INT4>(member, op, a);
        case BB_INT4_A8:
            return uses_bytes(BB_INT4_A8, op.rows) ? multiply_all<BB_INT4_A8>(member, op, a)
                                                   : multiply_all<BB_INT4>(member, op, a);
    }
}

constexpr int ROWS_PER_ITEM = 2;

}  // namespace

void Activations::reserve(int64_t rows, const BBWeight& w) {
    const int64_t padded = padded_k(w);
    if (w.format <= BB_FLOAT16) return grow(values, rows * padded);
    if (uses_tiles(w.format, rows)) {
        grow(tiles, (rows + TILE_HEIGHT - 1) / TILE_HEIGHT * num_groups(w));
        rows = TILES_FROM_ROWS;  // a last layer may be left with fewer
    }
    grow(scale, rows * num_groups(w));
    grow(sum, rows * num_groups(w));
    if (!uses_bytes(w.format, rows)) return grow(int16, rows * padded);
    grow(high, rows * padded);
    grow(low, rows * padded);
    grow(is_split, rows * num_groups(w));
}

int count_chunks(const BBWeight& w, int team_size) {
    return ceil_div(num_blocks(w), blocks_per_chunk(w, team_size));
}

FetchOwn::FetchOwn(const Member& member, const BBWeight* w) {
    if (!w) return;
    const int size = member.team_size(), first = member.first_of(count_chunks(*w, size)) * blocks_per_chunk(*w, size);
    if (first >= num_blocks(*w)) return;
    at_ = block_data(*w, first);
    end_ = at_ + std::min<int64_t>(FETCH_OWN_BYTES, (num_blocks(*w) - first) * block_bytes(*w));
}

bool FetchOwn::operator()() {
    if (at_ >= end_) return false;
    prefetch(at_, std::min<int64_t>(FETCH_OWN_STEP, end_ - at_));
    at_ += FETCH_OWN_STEP;
    return true;
}

void linear(Member& member, const Linear& op, Activations& shared) {
    static thread_local Activations own;
    static thread_local std::vector<float> scratch;
    if (op.rows <= FEW) {  // every member prepares for itself: cheaper than to wait for one another
        own.reserve(op.rows, *op.w);
        for (int row = 0; row < op.rows; row++) prepare_row(op, row, own, scratch);
        return multiply_all(member, op, own);
    }
    member.share(ceil_div(op.rows, ROWS_PER_ITEM), [&](int item) {
        const int end = std::min(op.rows, (item + 1) * ROWS_PER_ITEM);
        for (int row = item * ROWS_PER_ITEM; row < end; row++) prepare_row(op, row, shared, scratch);
    });
    multiply_all(member, op, shared);
}

}  // namespace bb
