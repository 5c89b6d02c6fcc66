// Rotary embedding, KV write and causal attention over a paged cache; called by every member of a team.
//
// A layer's cache is [num_blocks][num_kv_heads][key, value][block_size / 16] sub-blocks of 16 slots, each a packed
// weight block (weights.h), so that both products of attention are the linear layers' micro-kernel (D = head_dim padded
// to 16):
//   key    float32 [D][16 slots];               bfloat16 [D / 2][16 slots][2 d]
//   value  float32 [D / 16][16 slots][16 d];    bfloat16 [D / 16][8 pairs of slots][16 d][2 slots]
//   int8   like float32, then 16 float32 scales, one a slot: a head's values are code * scale, found when it is written
// The context is cut into spans of 256 slots at multiples of 256. A span's softmax and weighted sum start fresh and are
// then merged in ascending order, so a token's result depends on neither chunking nor on who computed which span.
#pragma once

#include <vector>

#include "threads.h"
#include "weights.h"

namespace bb {

constexpr int SLOTS = 16;  // a sub-block
constexpr int MAX_HEAD_DIM = 512;

struct Cache {
    uint8_t* data;
    int64_t block_stride;
    int format, block_size, num_kv_heads, padded_dim;

    Cache(const BBCache& cache, const BBBatch& batch, const BBAttention& spec);
    int64_t sub_block_bytes() const {
        if (format == BB_INT8) return int64_t(SLOTS) * (padded_dim + int(sizeof(float)));
        return int64_t(SLOTS) * padded_dim * (format == BB_FLOAT32 ? 4 : 2);
    }
    int64_t block_bytes() const { return sub_block_bytes() * (block_size / SLOTS) * 2 * num_kv_heads; }
    uint8_t* key(int block, int kv_head, int sub) const {
        return data + block * block_stride + (int64_t(kv_head) * 2 * (block_size / SLOTS) + sub) * sub_block_bytes();
    }
    uint8_t* value(int block, int kv_head, int sub) const {
        return key(block, kv_head, sub) + (block_size / SLOTS) * sub_block_bytes();
    }
};

// The scales behind the codes of an int8 sub-block.
inline const float* slot_scales(const uint8_t* sub_block, int padded_dim) {
    return reinterpret_cast<const float*>(sub_block + int64_t(SLOTS) * padded_dim);
}

// How a step's attention is cut into work items; made once a step by the caller, then read by all members.
class AttentionPlan {
public:
    struct Tile {
        int row, first_token, count, first_position;
    };

    void make(const BBBatch& batch, const BBAttention& spec, int team_size);
    const std::vector<Tile>& tiles() const { return tiles_; }
    bool splits_spans() const { return splits_spans_; }
    int max_spans() const { return max_spans_; }
    int max_rows() const { return max_rows_; }
    std::vector<float>& partials() { return partials_; }

private:
    std::vector<Tile> tiles_;
    std::vector<float> partials_;  // a span's weighted sums, peaks and totals, where spans are shared out
    int max_spans_ = 0, max_rows_ = 0;
    bool splits_spans_ = false;
};

// Normalizes and rotates q and k in place (qkv is [tokens, (H + 2 KV) * head_dim]) and writes k and v to the cache.
void rotate_and_store(Member& member, float* qkv, const Cache& cache, const BBBatch& batch, const BBAttention& spec,
                      const float* q_norm, const float* k_norm);

// Causal attention of the rotated q over the cache, into out[tokens, H * head_dim]. Who is done first fetches of `next`
// (may be null), which is multiplied after it.
void attend(Member& member, const float* qkv, const Cache& cache, const BBBatch& batch, const BBAttention& spec,
            AttentionPlan& plan, float* out, const BBWeight* next);

}  // namespace bb
