// Causal attention over packed cache blocks, one tile of a request's tokens and one kv head at a time.
#include "attention_tiles.h"
#include "linear.h"

namespace bb {
namespace {

constexpr int TILE_ROWS = 96;  // query rows of a tile: tokens times the heads that share a kv head
constexpr float LOG2_E = 1.44269504f;

// ---- micro-kernels: R rows times B sub-blocks of keys, or times B columns of 16 value dimensions ----

// What is fetched while scores are computed: lines of B sub-blocks of later keys and of B of values, one of each with
// every two dimensions. All at once they would hold up the loads at work.
struct Fetch {
    const uint8_t* const* keys;    // null: nothing
    const uint8_t* const* values;  // null: nothing

    template <int FORMAT, int B>
    BB_INLINE void some(int64_t at) const {
        constexpr int LINES = (PAIR_BYTES<FORMAT> + CACHE_LINE - 1) / CACHE_LINE;
        if (PAIR_BYTES<FORMAT> < CACHE_LINE && at % CACHE_LINE != 0) return;
        const auto fetch = [at](const uint8_t* const* blocks) __attribute__((always_inline)) {
            each<B>([&](auto n) {
                each<LINES>([&](auto line) { __builtin_prefetch(blocks[n] + at + line * CACHE_LINE, 0, 2); });
            });
        };
        if (keys) fetch(keys);
        if (values) fetch(values);
    }
};

template <int FORMAT, int R, int B>
BB_INLINE void score(const float* q, int dim, const uint8_t* const* keys, float* scores, Fetch next) {
    F acc[R][B];
    each<R>([&](auto m) { each<B>([&](auto n) { acc[m][n] = zero(); }); });
    for (int d = 0; d < dim; d += 2) {
        const int64_t at = d / 2 * PAIR_BYTES<FORMAT>;
        next.some<FORMAT, B>(at);
        F b[B];
        each<B>([&](auto n) { b[n] = load_even<FORMAT>(keys[n] + at); });
        each<R>([&](auto m) {
            const F a = set(q[m * dim + d]);
            each<B>([&](auto n) { acc[m][n] = fma(a, b[n], acc[m][n]); });
        });
        each<B>([&](auto n) { b[n] = load_odd<FORMAT>(keys[n] + at); });
        each<R>([&](auto m) {
            const F a = set(q[m * dim + d + 1]);
            each<B>([&](auto n) { acc[m][n] = fma(a, b[n], acc[m][n]); });
        });
    }
    if constexpr (FORMAT == BB_INT8) {
        each<B>([&](auto n) {
            const F scale = load(slot_scales(keys[n], dim));
            each<R>([&](auto m) { acc[m][n] = mul(acc[m][n], scale); });
        });
    }
    each<R>([&](auto m) { each<B>([&](auto n) { store(scores + m * SPAN + n * SLOTS, acc[m][n]); }); });
}

template <int FORMAT, int R, int B>
BB_INLINE void weigh(const float* weights, const Span& span, int column, int dim, float* out) {
    constexpr int64_t COLUMN_BYTES = SLOTS / 2 * PAIR_BYTES<FORMAT>;
    F acc[R][B];
    each<R>([&](auto m) { each<B>([&](auto n) { acc[m][n] = zero(); }); });
    for (int sub = span.begin; sub < span.end; sub++) {
        const uint8_t* values = span.values[sub] + column * COLUMN_BYTES;
        const float* w = weights + sub * SLOTS;
        const int slots = std::min(SLOTS, span.slots - sub * SLOTS);
        const auto add_slot = [&](int s, const auto& load_slot) __attribute__((always_inline)) {
            F b[B];
            each<B>([&](auto n) { b[n] = load_slot(values + n * COLUMN_BYTES + s / 2 * PAIR_BYTES<FORMAT>); });
            each<R>([&](auto m) {
                const F a = set(w[m * SPAN + s]);
                each<B>([&](auto n) { acc[m][n] = fma(a, b[n], acc[m][n]); });
            });
        };
        for (int s = 0; s + 2 <= slots; s += 2) {
            add_slot(s, load_even<FORMAT>);
            add_slot(s + 1, load_odd<FORMAT>);
        }
        if (slots % 2) add_slot(slots - 1, load_even<FORMAT>);  // the slot after it may hold anything
    }
    each<R>([&](auto m) { each<B>([&](auto n) { store(out + m * dim + (column + n) * LANES, acc[m][n]); }); });
}

template <class Body>
BB_INLINE void by_rows(int rows, Body&& body) {
    if constexpr (REGISTERS >= 32) tile_rows<6, 4, 3, 2, 1>(0, rows, body);
    else if constexpr (REGISTERS >= 8) tile_rows<4, 3, 2, 1>(0, rows, body);
    else tile_rows<2, 1>(0, rows, body);
}
constexpr int WIDTH = REGISTERS >= 32 ? 4 : 1;  // sub-blocks or columns of a micro-kernel

// Few rows (decode) wait for memory: their keys are fetched this many sub-blocks ahead, values meanwhile.
constexpr int FETCH_ROWS = 8, FETCH_AHEAD = 2 * WIDTH;

template <int FORMAT>
void score_all(const float* q, int rows, int dim, const Span& span, float* scores) {
    const int64_t bytes = int64_t(SLOTS) / 2 * dim / LANES * PAIR_BYTES<FORMAT>;
    const bool fetches = rows <= FETCH_ROWS;
    int sub = span.begin;
    if (fetches)
        for (int i = sub; i < std::min(sub + FETCH_AHEAD, span.end); i++) prefetch(span.keys[i], bytes);
    const auto group = [&](auto width) {
        for (; sub + width <= span.end; sub += width) {
            const bool has_ahead = sub + FETCH_AHEAD + width <= span.end;
            by_rows(rows, [&](auto r, int row) {
                const bool is_first = fetches && row == 0;
                const Fetch next{is_first && has_ahead ? span.keys + sub + FETCH_AHEAD : nullptr,
                                 is_first ? span.values + sub : nullptr};
                score<FORMAT, r, width>(q + row * dim, dim, span.keys + sub, scores + row * SPAN + sub * SLOTS, next);
            });
        }
    };
    group(std::integral_constant<int, WIDTH>{});
    if constexpr (WIDTH > 1) group(std::integral_constant<int, 1>{});
}

template <int FORMAT>
void weigh_all(const float* weights, int rows, int dim, const Span& span, float* out) {
    int column = 0;
    for (; column + WIDTH <= dim / LANES; column += WIDTH)
        by_rows(rows, [&](auto r, int row) {
            weigh<FORMAT, r, WIDTH>(weights + row * SPAN, span, column, dim, out + row * dim);
        });
    for (; column < dim / LANES; column++)
        by_rows(rows, [&](auto r, int row) {
            weigh<FORMAT, r, 1>(weights + row * SPAN, span, column, dim, out + row * dim);
        });
}

// Scores become weights 2^(score - peak), exact zeros where a slot is not visible; all zero: peak is NONE.
void softmax_row(float* scores, const Span& span, Visible visible, float& peak, float& total) {
    const F base = hide_and_find_peak(scores, span, visible, peak);
    F sum = zero();
    for (int i = span.begin * SLOTS; i < span.end * SLOTS; i += LANES) {
        const F weight = exp2(sub(load(scores + i), base));
        sum = add(sum, weight);
        store(scores + i, weight);
    }
    total = sum_lanes(sum);
}

// Takes the scales of int8 values into their weights.
void scale_weights(float* weights, int rows, int dim, const Span& span) {
    for (int sub = span.begin; sub < span.end; sub++) {
        const F scale = load(slot_scales(span.values[sub], dim));
        for (int r = 0; r < rows; r++) {
            float* at = weights + r * SPAN + sub * SLOTS;
            store(at, mul(load(at), scale));
        }
    }
}

// ---- one tile ----

struct Work {
    const float* qkv;
    const Cache& cache;
    const BBBatch& batch;
    const BBAttention& spec;

    int group() const { return spec.num_heads / spec.num_kv_heads; }
    int dim() const { return cache.padded_dim; }
};

struct Scratch {
    std::vector<float> q, scores, out[2], peak[2], total[2];
    AttentionTiles tiles;

    void reserve(int rows, int dim) {
        if (int(peak[0].size()) >= rows && int(q.size()) >= rows * dim) return;
        q.resize(size_t(rows) * dim);
        scores.resize(size_t(rows) * SPAN);
        for (int i = 0; i < 2; i++) {
            out[i].resize(size_t(rows) * dim);
            peak[i].resize(size_t(rows));
            total[i].resize(size_t(rows));
        }
    }
    Partial partial(int i) { return {out[i].data(), peak[i].data(), total[i].data()}; }
};

using Tile = AttentionPlan::Tile;

int first_span(const Tile& tile, const BBAttention& spec) {
    return spec.window ? std::max(0, tile.first_position + 1 - spec.window) / SPAN : 0;
}
int end_span(const Tile& tile) { return (tile.first_position + tile.count - 1) / SPAN + 1; }

// The tile's queries of one kv head, scaled for base 2, rows token by token and head by head within.
void gather_queries(const Work& work, const Tile& tile, int kv_head, float* q) {
    const int head_dim = work.spec.head_dim, dim = work.dim(), group = work.group();
    const int64_t ld = int64_t(work.spec.num_heads + 2 * work.spec.num_kv_heads) * head_dim;
    for (int r = 0; r < tile.count * group; r++) {
        const float* from = work.qkv + (tile.first_token + r / group) * ld + (kv_head * group + r % group) * head_dim;
        for (int d = 0; d < head_dim; d++) q[r * dim + d] = from[d] * (work.spec.scale * LOG2_E);
        std::fill(q + r * dim + head_dim, q + (r + 1) * dim, 0.0f);
    }
}

template <int FORMAT>
constexpr bool MAY_USE_TILES = HAS_TILES && FORMAT == BB_BFLOAT16;

template <int FORMAT>
void take_queries(const Work& work, const Tile& tile, int kv_head, Scratch& scratch) {
    gather_queries(work, tile, kv_head, scratch.q.data());
    const int dim = work.dim();
    if constexpr (MAY_USE_TILES<FORMAT>)
        if (AttentionTiles::fit(dim)) scratch.tiles.take_queries(scratch.q.data(), tile.count * work.group(), dim);
}

Span locate_span(const Work& work, const Tile& tile, int kv_head, int index) {
    const int start = index * SPAN, end = tile.first_position + tile.count, per_block = work.batch.block_size / SLOTS;
    const int oldest = work.spec.window ? std::max(0, tile.first_position + 1 - work.spec.window) : 0;
    Span span;
    span.slots = std::min(SPAN, end - start);
    span.begin = std::max(0, oldest - start) / SLOTS;
    span.end = ceil_div(span.slots, SLOTS);
    const int32_t* table = work.batch.block_tables + int64_t(tile.row) * work.batch.table_width;
    for (int sub = span.begin; sub < span.end; sub++) {
        const int at = start / SLOTS + sub, block = table[at / per_block];
        span.keys[sub] = work.cache.key(block, kv_head, at % per_block);
        span.values[sub] = work.cache.value(block, kv_head, at % per_block);
    }
    return span;
}

template <int FORMAT>
void attend_span(const Work& work, const Tile& tile, int kv_head, int index, Scratch& scratch, Partial result) {
    const int group = work.group(), rows = tile.count * group, dim = work.dim();
    const Span span = locate_span(work, tile, kv_head, index);
    const auto visible = [&](int r) {
        const int end = tile.first_position + r / group + 1 - index * SPAN;
        return Visible{work.spec.window ? end - work.spec.window : 0, end};
    };
    if constexpr (MAY_USE_TILES<FORMAT>)
        if (AttentionTiles::fit(dim)) return scratch.tiles.attend(span, visible, result);
    float *q = scratch.q.data(), *scores = scratch.scores.data();
    score_all<FORMAT>(q, rows, dim, span, scores);
    for (int r = 0; r < rows; r++) softmax_row(scores + r * SPAN, span, visible(r), result.peak[r], result.total[r]);
    if constexpr (FORMAT == BB_INT8) scale_weights(scores, rows, dim, span);
    weigh_all<FORMAT>(scores, rows, dim, span, result.out);
}

// Adds the later span `next` to the running result.
void merge(Partial running, Partial next, int rows, int dim) {
    for (int r = 0; r < rows; r++) {
        const float peak = std::max(running.peak[r], next.peak[r]);
        const float base = std::max(peak, std::numeric_limits<float>::lowest());
        const float keep = exp2(running.peak[r] - base), add_in = exp2(next.peak[r] - base);
        const F a = set(keep), b = set(add_in);
        for (int d = 0; d < dim; d += LANES) {
            float* at = running.out + r * dim + d;
            store(at, fma(load(next.out + r * dim + d), b, mul(load(at), a)));
        }
        running.total[r] = running.total[r] * keep + next.total[r] * add_in;
        running.peak[r] = peak;
    }
}

void write_output(const Work& work, const Tile& tile, int kv_head, Partial result, float* out) {
    const int group = work.group(), head_dim = work.spec.head_dim, dim = work.dim();
    for (int r = 0; r < tile.count * group; r++) {
        const int64_t head = int64_t(tile.first_token + r / group) * work.spec.num_heads + kv_head * group + r % group;
        const float inverse = 1.0f / result.total[r];
        for (int d = 0; d < head_dim; d++) out[head * head_dim + d] = result.out[r * dim + d] * inverse;
    }
}

template <int FORMAT>
void attend_tile(const Work& work, const Tile& tile, int kv_head, Scratch& scratch, float* out) {
    const int rows = tile.count * work.group(), begin = first_span(tile, work.spec), end = end_span(tile);
    take_queries<FORMAT>(work, tile, kv_head, scratch);
    for (int span = begin; span < end; span++) {
        const Partial result = scratch.partial(span == begin ? 0 : 1);
        attend_span<FORMAT>(work, tile, kv_head, span, scratch, result);
        if (span != begin) merge(scratch.partial(0), result, rows, work.dim());
    }
    write_output(work, tile, kv_head, scratch.partial(0), out);
}

// Few tiles, long contexts: every span is a work item, merged afterwards in the same order.
template <int FORMAT>
void attend_split(Member& member, const Work& work, AttentionPlan& plan, Scratch& scratch, float* out,
                  const BBWeight* next) {
    const int kv_heads = work.spec.num_kv_heads, spans = plan.max_spans(), max_rows = plan.max_rows(), dim = work.dim();
    const int tasks = int(plan.tiles().size()) * kv_heads;
    const auto partial = [&](int task, int span) {
        float* at = plan.partials().data() + (int64_t(task) * spans + span) * max_rows * (dim + 2);
        return Partial{at, at + max_rows * dim, at + max_rows * (dim + 1)};
    };
    const auto attend_item = [&](int item) {
        const int task = item / spans, span = item % spans, kv_head = task % kv_heads;
        const Tile& tile = plan.tiles()[size_t(task / kv_heads)];
        if (span < first_span(tile, work.spec) || span >= end_span(tile)) return;
        take_queries<FORMAT>(work, tile, kv_head, scratch);
        attend_span<FORMAT>(work, tile, kv_head, span, scratch, partial(task, span));
    };
    member.share(tasks * spans, attend_item, FetchOwn(member, next));
    member.share(tasks, [&](int task) {
        const Tile& tile = plan.tiles()[size_t(task / kv_heads)];
        const int begin = first_span(tile, work.spec);
        for (int span = begin + 1; span < end_span(tile); span++)
            merge(partial(task, begin), partial(task, span), tile.count * work.group(), dim);
        write_output(work, tile, task % kv_heads, partial(task, begin), out);
    });
}

struct ReleaseTiles {
    AttentionTiles& tiles;
    ~ReleaseTiles() {
        if constexpr (HAS_TILES) tiles.release();
    }
};

template <int FORMAT>
void attend_format(Member& member, const Work& work, AttentionPlan& plan, float* out, const BBWeight* next) {
    static thread_local Scratch scratch;
    scratch.reserve(plan.max_rows(), work.dim());
    const ReleaseTiles release{scratch.tiles};
    if (plan.splits_spans()) return attend_split<FORMAT>(member, work, plan, scratch, out, next);
    const int kv_heads = work.spec.num_kv_heads;
    const auto body = [&](int item) {
        attend_tile<FORMAT>(work, plan.tiles()[size_t(item / kv_heads)], item % kv_heads, scratch, out);
    };
    member.share(int(plan.tiles().size()) * kv_heads, body, FetchOwn(member, next));
}

}  // namespace

Cache::Cache(const BBCache& cache, const BBBatch& batch, const BBAttention& spec)
    : data(static_cast<uint8_t*>(cache.data)), block_stride(cache.block_stride), format(cache.format),
      block_size(batch.block_size), num_kv_heads(spec.num_kv_heads),
      padded_dim(ceil_div(spec.head_dim, LANES) * LANES) {}

void AttentionPlan::make(const BBBatch& batch, const BBAttention& spec, int team_size) {
    const int group = spec.num_heads / spec.num_kv_heads, tokens = std::max(1, TILE_ROWS / group);
    const int dim = ceil_div(spec.head_dim, LANES) * LANES;
    tiles_.clear();
    max_spans_ = max_rows_ = 0;
    for (int row = 0; row < batch.num_rows; row++) {
        const int begin = batch.query_start[row], end = batch.query_start[row + 1];
        for (int t = begin; t < end; t += tokens)
            tiles_.push_back({row, t, std::min(tokens, end - t), batch.seq_lens[row] - (end - t)});
    }
    // Longest context first, so that no member is left with a long item at the end.
    std::stable_sort(tiles_.begin(), tiles_.end(), [](const Tile& a, const Tile& b) {
        return a.first_position + a.count > b.first_position + b.count;
    });
    for (const Tile& tile : tiles_) {
        max_spans_ = std::max(max_spans_, end_span(tile));
        max_rows_ = std::max(max_rows_, AttentionTiles::padded(tile.count * group));
    }
    const int tasks = int(tiles_.size()) * spec.num_kv_heads;
    splits_spans_ = team_size > 1 && max_spans_ > 1 && tasks < 4 * team_size;
    if (!splits_spans_) return;
    const size_t floats = size_t(tasks) * size_t(max_spans_) * size_t(max_rows_) * size_t(dim + 2);
    if (partials_.size() < floats) partials_.resize(floats);
}

void attend(Member& member, const float* qkv, const Cache& cache, const BBBatch& batch, const BBAttention& spec,
            AttentionPlan& plan, float* out, const BBWeight* next) {
    const Work work{qkv, cache, batch, spec};
    if (cache.format == BB_FLOAT32) attend_format<BB_FLOAT32>(member, work, plan, out, next);
    else if (cache.format == BB_INT8) attend_format<BB_INT8>(member, work, plan, out, next);
    else attend_format<BB_BFLOAT16>(member, work, plan, out, next);
}

}  // namespace bb
