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
    const auto multiply = [&](const float* x, const float* norm, const BBWeight& w, float* y, int64_t ldy,
                              int epilogue) {
        linear(member, {x, w.k, norm, eps, &w, rows, y, ldy, epilogue}, workspace.activations);
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
        timed(QKV, [&] { multiply(hidden, layer->input_norm, layer->qkv, qkv, layer->qkv.n, BB_STORE); });
        timed(ROTATE, [&] {
            rotate_and_store(member, qkv, cache, batch, attention, layer->q_norm, layer->k_norm);
        });
        timed(ATTEND, [&] { attend(member, qkv, cache, batch, attention, workspace.plan, attended); });
        timed(O, [&] { multiply(attended, nullptr, layer->o, hidden, hidden_size, BB_ADD); });
        timed(GATE_UP, [&] {
            multiply(hidden, layer->post_attention_norm, layer->gate_up, activated, layer->down.k, BB_SWIGLU);
        });
        timed(DOWN, [&] { multiply(activated, nullptr, layer->down, hidden, hidden_size, BB_ADD); });
    }
}

}  // namespace bb
