// What happens to q, k and v between the projection and attention: per-head norm, rotation, write to the cache.
#include <algorithm>
#include <cmath>

#include "attention.h"

namespace bb {
namespace {

void norm_head(float* head, const float* weight, float eps, int dim) {
    const int whole = dim / LANES * LANES, rest = dim - whole;
    F squares = zero();
    for (int i = 0; i < whole; i += LANES) squares = fma(load(head + i), load(head + i), squares);
    if (rest) squares = fma(load_part(head + whole, rest), load_part(head + whole, rest), squares);
    const F inverse = set(1.0f / std::sqrt(sum_lanes(squares) / float(dim) + eps));
    for (int i = 0; i < whole; i += LANES) store(head + i, mul(mul(load(head + i), inverse), load(weight + i)));
    if (rest)
        store_part(head + whole, mul(mul(load_part(head + whole, rest), inverse), load_part(weight + whole, rest)),
                   rest);
}

BB_INLINE void rotate(F& first, F& second, F cos, F sin) {
    const F turned = sub(mul(first, cos), mul(second, sin));
    second = add(mul(second, cos), mul(first, sin));
    first = turned;
}

// Dimension j turns with dimension j + dim / 2.
void rotate_head(float* head, const float* cos, const float* sin, int dim) {
    const int half = dim / 2, whole = half / LANES * LANES, rest = half - whole;
    for (int i = 0; i < whole; i += LANES) {
        F first = load(head + i), second = load(head + half + i);
        rotate(first, second, load(cos + i), load(sin + i));
        store(head + i, first);
        store(head + half + i, second);
    }
    if (!rest) return;
    F first = load_part(head + whole, rest), second = load_part(head + half + whole, rest);
    rotate(first, second, load_part(cos + whole, rest), load_part(sin + whole, rest));
    store_part(head + whole, first, rest);
    store_part(head + half + whole, second, rest);
}

constexpr float SMALLEST = 1e-30f;  // below, a head counts as zero: the inverse of its scale would overflow

// A head as int8 codes, the largest of them 127, into codes[dim]; returns the scale that gives the values back.
float quantize_head(const float* head, int dim, int8_t* codes) {
    F top = zero(), poison = zero();  // max forgets a NaN, a sum does not
    const auto part = [&](int i) { return dim - i < LANES ? load_part(head + i, dim - i) : load(head + i); };
    for (int i = 0; i < dim; i += LANES) {
        top = max(top, abs(part(i)));
        poison = fma(part(i), zero(), poison);
    }
    const float largest = max_lanes(add(top, poison));
    const F inverse = set(largest > SMALLEST ? 127.0f / largest : 0.0f);
    for (int i = 0; i < dim; i += LANES) {
        float rounded[LANES];
        store(rounded, to_float(round_to_int(mul(part(i), inverse))));
        for (int lane = 0; lane < std::min(LANES, dim - i); lane++)
            codes[i + lane] = int8_t(std::clamp(rounded[lane], -127.0f, 127.0f));
    }
    return largest / 127.0f;
}

void store_scale(uint8_t* sub_block, int slot, int dim, float scale) {
    const int padded = ceil_div(dim, LANES) * LANES;
    reinterpret_cast<float*>(sub_block + int64_t(SLOTS) * padded)[slot] = scale;
}

void store_key(uint8_t* sub_block, int format, int slot, const float* key, int dim) {
    if (format == BB_INT8) {
        int8_t codes[MAX_HEAD_DIM];
        store_scale(sub_block, slot, dim, quantize_head(key, dim, codes));
        for (int d = 0; d < dim; d++) sub_block[d * SLOTS + slot] = uint8_t(codes[d]);
        return;
    }
    if (format == BB_FLOAT32) {
        float* out = reinterpret_cast<float*>(sub_block) + slot;
        for (int d = 0; d < dim; d++) out[d * SLOTS] = key[d];
        return;
    }
    uint16_t* out = reinterpret_cast<uint16_t*>(sub_block) + slot * 2;
    for (int d = 0; d < dim; d++) out[d / 2 * 2 * SLOTS + d % 2] = to_bf16(key[d]);
}

void store_value(uint8_t* sub_block, int format, int slot, const float* value, int dim) {
    if (format == BB_INT8) {
        int8_t codes[MAX_HEAD_DIM];
        store_scale(sub_block, slot, dim, quantize_head(value, dim, codes));
        uint8_t* out = sub_block + slot * LANES;
        for (int d = 0; d < dim; d++) out[d / LANES * LANES * SLOTS + d % LANES] = uint8_t(codes[d]);
        return;
    }
    if (format == BB_FLOAT32) {
        float* out = reinterpret_cast<float*>(sub_block) + slot * LANES;
        for (int d = 0; d < dim; d++) out[d / LANES * LANES * SLOTS + d % LANES] = value[d];
        return;
    }
    uint16_t* out = reinterpret_cast<uint16_t*>(sub_block) + slot / 2 * 2 * LANES + slot % 2;
    for (int d = 0; d < dim; d++) out[d / LANES * LANES * SLOTS + d % LANES * 2] = to_bf16(value[d]);
}

constexpr int TOKENS_PER_ITEM = 4;

}  // namespace

void rotate_and_store(Member& member, float* qkv, const Cache& cache, const BBBatch& batch, const BBAttention& spec,
                      const float* q_norm, const float* k_norm) {
    const int dim = spec.head_dim, heads = spec.num_heads, kv_heads = spec.num_kv_heads;
    const auto token = [&](int t) {
        const float* cos = spec.cos_sin + int64_t(batch.positions[t]) * dim;
        const int block = batch.slots[t] / batch.block_size, offset = batch.slots[t] % batch.block_size;
        float* head = qkv + int64_t(t) * (heads + 2 * kv_heads) * dim;
        for (int h = 0; h < heads + kv_heads; h++, head += dim) {
            const float* norm = h < heads ? q_norm : k_norm;
            if (norm) norm_head(head, norm, spec.norm_eps, dim);
            rotate_head(head, cos, cos + dim / 2, dim);
            if (h < heads) continue;
            store_key(cache.key(block, h - heads, offset / SLOTS), cache.format, offset % SLOTS, head, dim);
        }
        for (int h = 0; h < kv_heads; h++, head += dim)
            store_value(cache.value(block, h, offset / SLOTS), cache.format, offset % SLOTS, head, dim);
    };
    member.share(ceil_div(batch.num_tokens, TOKENS_PER_ITEM), [&](int item) {
        const int end = std::min(batch.num_tokens, (item + 1) * TOKENS_PER_ITEM);
        for (int t = item * TOKENS_PER_ITEM; t < end; t++) token(t);
    });
}

}  // namespace bb
