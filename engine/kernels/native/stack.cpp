#include "stack.h"

namespace bb {
namespace {

void fit(std::vector<float>& buffer, int64_t size) {
    if (int64_t(buffer.size()) < size) buffer.resize(size_t(size));
}

}  // namespace

void Workspace::reserve_stack(const BBLayer* layers, int num_layers, int64_t tokens) {
    for (const BBLayer* layer = layers; layer < layers + num_layers; layer++) {
        for (const BBWeight* w : {&layer->qkv, &layer->o, &layer->gate_up, &layer->down})
            activations.reserve(tokens, *w);
        fit(qkv, tokens * layer->qkv.n);
        fit(attended, tokens * layer->o.k);
        fit(activated, tokens * layer->down.k);
    }
}

void decode(Member& member, float* hidden, int hidden_size, const BBLayer* layers, int num_layers, const BBBatch& batch,
            float eps, Workspace& workspace) {
    const int rows = batch.num_tokens;
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
        timed(ATTEND, [&] { attend(member, qkv, cache, batch, attention, workspace.plan, attended, w_o); });
        timed(O, [&] {
            multiply({.x = attended, .w = w_o, .y = hidden, .ldy = hidden_size, .epilogue = BB_ADD}, w_gate_up);
        });
        timed(GATE_UP, [&] {
            multiply({.x = hidden, .norm = layer->post_attention_norm, .w = w_gate_up, .y = activated,
                      .ldy = w_down->k, .epilogue = BB_SWIGLU}, w_down);
        });
        timed(DOWN, [&] {
            multiply({.x = activated, .w = w_down, .y = hidden, .ldy = hidden_size, .epilogue = BB_ADD}, w_next);
        });
    }
}

}  // namespace bb
