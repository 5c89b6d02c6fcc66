#include "stack.h"

#include <cstring>

namespace bb {
namespace {

// Row wanted[i] of `from` becomes row i of `to`, which may be the same.
void gather(Member& member, const BBBatch& batch, const float* from, float* to, int64_t width) {
    member.share(1, [&](int) {
        for (int i = 0; i < batch.num_wanted; i++)
            std::memmove(to + i * width, from + batch.wanted[i] * width, size_t(width) * sizeof(float));
    });
}

void scatter(Member& member, const BBBatch& batch, const float* from, float* to, int64_t width) {
    member.share(1, [&](int) {
        for (int i = 0; i < batch.num_wanted; i++)
            std::memcpy(to + batch.wanted[i] * width, from + i * width, size_t(width) * sizeof(float));
    });
}

}  // namespace

void Workspace::reserve_stack(const BBLayer* layers, int num_layers, int64_t tokens) {
    for (const BBLayer* layer = layers; layer < layers + num_layers; layer++) {
        for (const BBWeight* w : {&layer->qkv, &layer->o, &layer->gate_up, &layer->down})
            activations.reserve(tokens, *w);
        grow(qkv, tokens * layer->qkv.n);
        grow(attended, tokens * layer->o.k);
        grow(activated, tokens * layer->down.k);
        grow(kept, tokens * layer->down.n);
    }
}

void decode(Member& member, float* hidden, int hidden_size, const BBLayer* layers, int num_layers, const BBBatch& batch,
            float eps, Workspace& workspace) {
    int rows = batch.num_tokens;
    float* stream = hidden;  // [rows, hidden_size]
    float *qkv = workspace.qkv.data(), *attended = workspace.attended.data(), *activated = workspace.activated.data();
    const auto multiply = [&](Linear op, const BBWeight* next) {
        op.ldx = op.w->k, op.eps = eps, op.rows = rows, op.next = next;
        linear(member, op, workspace.activations);
    };
    // Two looks at the clock an op: a ten-thousandth of a step of one token.
    const auto timed = [&](StackOp op, auto&& body) {
        if (member.index() != 0) return body();
        const int64_t start = now_ns();
        body();
        workspace.op_ns[op] += now_ns() - start;
    };
    for (const BBLayer* layer = layers; layer < layers + num_layers; layer++) {
        const Cache cache(layer->cache, batch, layer->attention);
        const BBAttention& attention = layer->attention;
        const BBWeight *w_qkv = &layer->qkv, *w_o = &layer->o, *w_gate_up = &layer->gate_up, *w_down = &layer->down;
        const BBWeight* w_next = layer + 1 < layers + num_layers ? &layer[1].qkv : nullptr;
        timed(QKV, [&] {
            multiply({.x = hidden, .norm = layer->input_norm, .w = w_qkv, .y = qkv, .ldy = w_qkv->n}, nullptr);
        });
        timed(ROTATE, [&] {
            rotate_and_store(member, qkv, cache, batch, attention, layer->q_norm, layer->k_norm);
        });
        const bool cuts = !w_next && batch.wanted && batch.num_wanted < rows;
        if (cuts && batch.num_wanted == 0) return;
        timed(ATTEND, [&] { attend(member, qkv, cache, batch, attention, workspace.plan, attended, w_o); });
        if (cuts) {
            rows = batch.num_wanted, stream = workspace.kept.data();
            gather(member, batch, attended, attended, w_o->k);
            gather(member, batch, hidden, stream, hidden_size);
        }
        timed(O, [&] {
            multiply({.x = attended, .w = w_o, .y = stream, .ldy = hidden_size, .epilogue = BB_ADD}, w_gate_up);
        });
        timed(GATE_UP, [&] {
            multiply({.x = stream, .norm = layer->post_attention_norm, .w = w_gate_up, .y = activated,
                      .ldy = w_down->k, .epilogue = BB_SWIGLU}, w_down);
        });
        timed(DOWN, [&] {
            multiply({.x = activated, .w = w_down, .y = stream, .ldy = hidden_size, .epilogue = BB_ADD}, w_next);
        });
        if (cuts) scatter(member, batch, stream, hidden, hidden_size);
    }
}

}  // namespace bb
