// The C interface: checks what it is given, opens a region of the team, calls the kernels.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <limits>
#include <string>

#include "abi.h"
#include "attention.h"
#include "floors.h"
#include "linear.h"
#include "sampling.h"
#include "stack.h"

#define BB_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace bb;

thread_local std::string last_error;
Workspace workspace;  // guarded by SharedTeam::lock()

struct BadCall : std::exception {
    std::string message;
    explicit BadCall(std::string text) : message(std::move(text)) {}
    const char* what() const noexcept override { return message.c_str(); }
};

void require(bool condition, const char* name, const char* rule, int64_t value) {
    if (condition) return;
    char text[160];
    std::snprintf(text, sizeof text, "%s must be %s, not %lld", name, rule, static_cast<long long>(value));
    throw BadCall(text);
}

void require_pointer(const void* pointer, const char* name) {
    if (!pointer) throw BadCall(std::string(name) + " must not be null");
}

void check_weight(const BBWeight& w, const char* name) {
    require(w.n > 0 && w.k > 0 && w.k < (1 << 24), name, "a matrix of positive sizes with k below 2^24", w.k);
    require(w.format >= BB_FLOAT32 && w.format <= BB_INT4_A8, name, "of a known format", w.format);
    require(!w.gate_up || w.n % 2 == 0, name, "of even n where it holds gate and up", w.n);
}

void check_packed(const BBWeight& w, const char* name) {
    check_weight(w, name);
    require_pointer(w.data, name);
    require(w.data_bytes == packed_bytes(w), name, "as many bytes as its shape packs to", w.data_bytes);
}

void check_batch(const BBBatch& b) {
    require(b.num_tokens > 0, "num_tokens", "positive", b.num_tokens);
    require(b.num_rows > 0 && b.num_rows <= b.num_tokens, "num_rows", "in 1 … num_tokens", b.num_rows);
    require(b.block_size > 0 && b.block_size % SLOTS == 0, "block_size", "a multiple of 16", b.block_size);
    for (const void* index : {b.positions, b.slots, b.query_start, b.seq_lens, b.block_tables})
        require_pointer(index, "batch index");
    require(b.query_start[0] == 0 && b.query_start[b.num_rows] == b.num_tokens, "query_start",
            "0 … num_tokens", b.query_start[b.num_rows]);
    for (int row = 0; row < b.num_rows; row++) {
        const int count = b.query_start[row + 1] - b.query_start[row];
        require(count > 0, "query_start", "ascending", count);
        require(b.seq_lens[row] >= count, "seq_lens", "at least the row's tokens", b.seq_lens[row]);
        require(ceil_div(b.seq_lens[row], b.block_size) <= b.table_width, "seq_lens", "within the block table",
                b.seq_lens[row]);
    }
}

// Tokens of `wanted` are read and written, so they are looked at where they are used: by bb_decode alone.
void check_wanted(const BBBatch& b) {
    if (!b.wanted) return;
    require(b.num_wanted >= 0 && b.num_wanted <= b.num_tokens, "num_wanted", "in 0 … num_tokens", b.num_wanted);
    for (int i = 0; i < b.num_wanted; i++) {
        const int least = i == 0 ? 0 : b.wanted[i - 1] + 1;
        require(b.wanted[i] >= least && b.wanted[i] < b.num_tokens, "wanted", "ascending tokens", b.wanted[i]);
    }
}

void check_attention(const BBAttention& a) {
    require(a.head_dim > 0 && a.head_dim % 2 == 0, "head_dim", "even", a.head_dim);
    require(a.head_dim <= MAX_HEAD_DIM, "head_dim", "at most 512", a.head_dim);
    require(a.num_kv_heads > 0 && a.num_heads > 0 && a.num_heads % a.num_kv_heads == 0, "num_heads",
            "a multiple of num_kv_heads", a.num_heads);
    require(a.window >= 0, "window", "0 or positive", a.window);
    require_pointer(a.cos_sin, "cos_sin");
}

void check_cache(const BBCache& c, const BBBatch& b, const BBAttention& a) {
    require_pointer(c.data, "cache");
    const bool is_known = c.format == BB_FLOAT32 || c.format == BB_BFLOAT16 || c.format == BB_INT8;
    require(is_known, "cache format", "float32, bfloat16 or int8", c.format);
    const Cache cache(c, b, a);
    require(c.num_blocks > 0 && c.block_stride >= cache.block_bytes(), "cache", "blocks that do not overlap",
            c.block_stride);
    require(c.data_bytes == (c.num_blocks - 1) * c.block_stride + cache.block_bytes(), "cache",
            "num_blocks blocks long", c.data_bytes);
    const int64_t slots = int64_t(c.num_blocks) * b.block_size;
    for (int t = 0; t < b.num_tokens; t++) {
        require(b.slots[t] >= 0 && b.slots[t] < slots, "slot_mapping", "a slot of the cache", b.slots[t]);
        require(b.positions[t] >= 0 && b.positions[t] < a.max_positions, "positions", "within cos_sin", b.positions[t]);
    }
    for (int row = 0; row < b.num_rows; row++)
        for (int i = 0; i < ceil_div(b.seq_lens[row], b.block_size); i++) {
            const int block = b.block_tables[int64_t(row) * b.table_width + i];
            require(block >= 0 && block < c.num_blocks, "block_tables", "blocks of the cache", block);
        }
}

void check_layer(const BBLayer& layer, const BBLayer& first, int hidden, const BBBatch& batch, int index) {
    const BBAttention& a = layer.attention;
    check_attention(a);
    require(a.num_heads == first.attention.num_heads && a.num_kv_heads == first.attention.num_kv_heads &&
                a.head_dim == first.attention.head_dim, "heads", "the same in all layers", index);
    for (const BBWeight* w : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) check_packed(*w, "weight");
    const int qkv_channels = (a.num_heads + 2 * a.num_kv_heads) * a.head_dim;
    require(layer.qkv.n == qkv_channels, "qkv", "(H + 2 KV) * D channels", layer.qkv.n);
    require(layer.qkv.k == hidden && layer.gate_up.k == hidden, "hidden_size", "the inputs of qkv and gate_up", hidden);
    require(layer.o.n == hidden && layer.down.n == hidden, "hidden_size", "the channels of o and down", hidden);
    require(layer.o.k == a.num_heads * a.head_dim, "o", "H * D inputs", layer.o.k);
    const bool fits_down = layer.gate_up.gate_up == 1 && layer.gate_up.n == 2 * layer.down.k;
    require(fits_down, "gate_up", "2 I channels", layer.gate_up.n);
    require(!layer.qkv.gate_up && !layer.o.gate_up && !layer.down.gate_up, "qkv, o, down", "plain matrices", index);
    require_pointer(layer.input_norm, "input_norm");
    require_pointer(layer.post_attention_norm, "post_attention_norm");
    if (index == 0) return check_cache(layer.cache, batch, a);  // the walk over all slots; the others are of one size
    require(layer.cache.data && layer.cache.data_bytes == first.cache.data_bytes &&
                layer.cache.block_stride == first.cache.block_stride &&
                layer.cache.format == first.cache.format && a.max_positions == first.attention.max_positions,
            "cache and cos_sin", "of the same size in all layers", index);
}

// Runs body and turns exceptions into the error code of the C interface.
template <class Body>
int guarded(Body&& body) {
    try {
        body();
        return 0;
    } catch (const std::exception& error) {
        last_error = error.what();
        return 1;
    }
}

template <class Region>
void on_team(Region&& region) {
    SharedTeam::get().run(region);
}

}  // namespace

BB_EXPORT int bb_abi_version() { return BB_ABI_VERSION; }
BB_EXPORT const char* bb_isa() { return ISA_NAME; }
BB_EXPORT const char* bb_error() { return last_error.c_str(); }

BB_EXPORT int bb_set_num_threads(int threads) {
    return guarded([&] {
        require(threads >= 0 && threads <= 1024, "num_threads", "0 … 1024", threads);
        const auto lock = SharedTeam::lock();
        SharedTeam::resize(threads);
    });
}
BB_EXPORT int bb_num_threads() { return SharedTeam::size(); }

// Bytes that a weight of this shape packs to; -1 where the shape is wrong.
BB_EXPORT int64_t bb_packed_bytes(const BBWeight* shape) {
    int64_t bytes = -1;
    guarded([&] {
        check_weight(*shape, "weight");
        bytes = packed_bytes(*shape);
    });
    return bytes;
}

BB_EXPORT int bb_pack_floats(const void* source, int source_type, int64_t row_stride, const BBWeight* shape, void* out,
                             int64_t out_bytes) {
    return guarded([&] {
        check_weight(*shape, "weight");
        const bool is_float = source_type >= SOURCE_FLOAT32 && source_type <= SOURCE_FLOAT16;
        require(is_float, "source type", "a float type", source_type);
        require(out_bytes == packed_bytes(*shape), "out", "as many bytes as the shape packs to", out_bytes);
        const auto lock = SharedTeam::lock();
        on_team([&](Member& member) { pack_floats(member, source, source_type, row_stride, *shape, out); });
    });
}

BB_EXPORT int bb_pack_codes(const int8_t* codes, const uint16_t* scales, const uint16_t* minima, const BBWeight* shape,
                            void* out, int64_t out_bytes) {
    return guarded([&] {
        check_weight(*shape, "weight");
        require(shape->format >= BB_INT8, "format", "an integer format", shape->format);
        require(shape->k % GROUP == 0, "k", "a multiple of 32", shape->k);
        require((shape->format == BB_INT8) == (minima == nullptr), "minima", "given for int4 only", shape->format);
        require(out_bytes == packed_bytes(*shape), "out", "as many bytes as the shape packs to", out_bytes);
        const auto lock = SharedTeam::lock();
        on_team([&](Member& member) { pack_codes(member, codes, scales, minima, *shape, out); });
    });
}

// Rows `ids` of the packed matrix as floats, into out[count, k].
BB_EXPORT int bb_unpack_rows(const BBWeight* w, const int64_t* ids, int count, float* out) {
    return guarded([&] {
        check_packed(*w, "weight");
        for (int i = 0; i < count; i++) require(ids[i] >= 0 && ids[i] < w->n, "row id", "within the matrix", ids[i]);
        for (int i = 0; i < count; i++) unpack_row(*w, int(ids[i]), out + int64_t(i) * w->k);
    });
}

// y[rows, n] (op)= rms_norm(x[rows, k]) W^T + bias; no norm where `norm` is null.
BB_EXPORT int bb_linear(const float* x, int64_t ldx, const float* norm, float eps, const BBWeight* w, int rows,
                        float* y, int64_t ldy, int epilogue) {
    return guarded([&] {
        check_packed(*w, "weight");
        require(rows > 0, "rows", "positive", rows);
        require(ldx >= w->k, "ldx", "at least k", ldx);
        require(epilogue >= BB_STORE && epilogue <= BB_SWIGLU, "epilogue", "store, add or swiglu", epilogue);
        require((epilogue == BB_SWIGLU) == (w->gate_up != 0), "epilogue", "swiglu for gate_up weights only", epilogue);
        require(ldy >= (w->gate_up ? w->n / 2 : w->n), "ldy", "at least the outputs of a row", ldy);
        const auto lock = SharedTeam::lock();
        workspace.activations.reserve(rows, *w);
        const Linear op{x, ldx, norm, eps, w, rows, y, ldy, epilogue};
        on_team([&](Member& member) { linear(member, op, workspace.activations); });
    });
}

// Rotates and normalizes qkv in place, writes k and v to the cache, attends; out is [tokens, num_heads * head_dim].
BB_EXPORT int bb_attend(float* qkv, const BBCache* kv, const BBBatch* batch, const BBAttention* spec,
                        const float* q_norm, const float* k_norm, float* out) {
    return guarded([&] {
        check_batch(*batch);
        check_attention(*spec);
        check_cache(*kv, *batch, *spec);
        const auto lock = SharedTeam::lock();
        const Cache cache(*kv, *batch, *spec);
        workspace.plan.make(*batch, *spec, SharedTeam::size());
        on_team([&](Member& member) {
            rotate_and_store(member, qkv, cache, *batch, *spec, q_norm, k_norm);
            attend(member, qkv, cache, *batch, *spec, workspace.plan, out, nullptr);
        });
    });
}

// Runs the decoder layers over hidden[tokens, hidden_size], in place. All layers have the same heads and head_dim.
// Where the batch says which tokens are wanted, the other rows of `hidden` hold nothing of use afterwards.
BB_EXPORT int bb_decode(float* hidden, int hidden_size, const BBLayer* layers, int num_layers, const BBBatch* batch,
                        float eps) {
    return guarded([&] {
        check_batch(*batch);
        check_wanted(*batch);
        require(num_layers > 0, "num_layers", "positive", num_layers);
        for (int i = 0; i < num_layers; i++) check_layer(layers[i], layers[0], hidden_size, *batch, i);
        const auto lock = SharedTeam::lock();
        workspace.reserve_stack(layers, num_layers, batch->num_tokens);
        workspace.plan.make(*batch, layers->attention, SharedTeam::size());
        on_team([&](Member& member) {
            decode(member, hidden, hidden_size, layers, num_layers, *batch, eps, workspace);
        });
    });
}

// Seconds that `bb_decode` spent in each kind of op since the last call of this, in the order of StackOp (stack.h).
BB_EXPORT void bb_op_seconds(double* seconds) {
    const auto lock = SharedTeam::lock();
    for (int op = 0; op < NUM_STACK_OPS; op++) {
        seconds[op] = double(workspace.op_ns[op]) * 1e-9;
        workspace.op_ns[op] = 0;
    }
}

// Channel of the largest output of rms_norm(x[rows, k]) W^T + bias in each row, the lowest of equals, 0 where none is a
// number; the outputs themselves are never written.
BB_EXPORT int bb_linear_argmax(const float* x, int64_t ldx, const float* norm, float eps, const BBWeight* w, int rows,
                               int64_t* out) {
    return guarded([&] {
        check_packed(*w, "weight");
        require(rows > 0, "rows", "positive", rows);
        require(ldx >= w->k, "ldx", "at least k", ldx);
        require(w->gate_up == 0, "gate_up", "0", w->gate_up);
        const auto lock = SharedTeam::lock();
        workspace.activations.reserve(rows, *w);
        const int chunks = count_chunks(*w, SharedTeam::get().size());
        std::vector<Leader>& leaders = workspace.leaders;
        leaders.resize(size_t(chunks) * size_t(rows));
        const Linear op{x, ldx, norm, eps, w, rows, nullptr, 0, LEADERS, leaders.data()};
        on_team([&](Member& member) { linear(member, op, workspace.activations); });
        for (int row = 0; row < rows; row++) {
            Leader best{-std::numeric_limits<float>::infinity(), -1};
            for (int chunk = 0; chunk < chunks; chunk++) {
                const Leader& other = leaders[size_t(chunk) * size_t(rows) + size_t(row)];
                if (other.value > best.value || best.channel < 0) best = other;
            }
            out[row] = std::max(best.channel, 0);
        }
    });
}

// A token of each row of processed logits[rows, vocab]; the arrays are those of `Draws` (sampling.h).
BB_EXPORT int bb_draw(const float* logits, int rows, int vocab, const float* temperature, const int32_t* top_k,
                      const float* top_p, const float* log_min_p, const int64_t* keys, int64_t* out) {
    return guarded([&] {
        require(rows > 0, "rows", "positive", rows);
        require(vocab > 0, "vocab", "positive", vocab);
        const auto lock = SharedTeam::lock();
        const Draws draws{temperature, top_k, top_p, log_min_p, keys};
        on_team([&](Member& member) { draw_rows(member, logits, rows, vocab, draws, out); });
    });
}

// Penalties of `Seen` (sampling.h) on logits[rows, vocab], in place.
BB_EXPORT int bb_penalise(float* logits, int rows, int vocab, const int32_t* starts, const int32_t* ids,
                          const int32_t* counts, const float* repetition, const float* frequency,
                          const float* presence) {
    return guarded([&] {
        require(rows > 0, "rows", "positive", rows);
        for (int row = 0; row < rows; row++)
            require(starts[row] <= starts[row + 1], "starts", "ascending", starts[row + 1]);
        for (int i = starts[0]; i < starts[rows]; i++)
            require(ids[i] >= 0 && ids[i] < vocab, "ids", "within the vocabulary", ids[i]);
        penalise_rows(logits, rows, vocab, {starts, ids, counts, repetition, frequency, presence});
    });
}

// Best of `repeats`, a second: bytes read from data[count], float operations, int16 and int8 operations; into rates[4].
BB_EXPORT int bb_measure(const float* data, int64_t count, int repeats, double* rates) {
    return guarded([&] {
        require_pointer(data, "data");
        require(count >= 1 << 16, "count", "at least 65536", count);
        require(repeats > 0, "repeats", "positive", repeats);
        const auto lock = SharedTeam::lock();
        Team& team = SharedTeam::get();
        std::fill(rates, rates + 4, 0.0);
        for (int i = 0; i < repeats; i++) {
            const double found[4] = {measure_read(team, data, count), measure_fma(team), measure_int16(team),
                                     measure_int8(team)};
            for (int j = 0; j < 4; j++) rates[j] = std::max(rates[j], found[j]);
        }
    });
}
