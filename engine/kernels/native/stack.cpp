#include "stack.h"

namespace bb {
namespace {

void fit(std::vector<float>& buffer, int64_t size) {
    if (int64_t(buffer.size()) < size) buffer.resize(size_t(size));
}

}  // namespace

void Workspace::reserve_stack(const BBLayer* layers, int num_layers, int64_t tokens) {
    for (const BBLayer* layer = layers; layer < layers + num_layers; layer++) {
        for (const BBWeight* w : {&layer->qkv, &layer->o, &layer->gate_up, &layer->down}) activations.reserve(tokens, *w);
        fit(qkv, tokens * layer->qkv.n);
        fit(attended, tokens * layer->o.k);
        fit(activated, tokens * layer->down.k);
    }
}

void decode(Member& member, float* hidden, int hidden_size, const BBLayer* layers, int num_layers, const BBBatch& batch,
            float eps, Workspace& workspace) {
    const int rows = batch.num_tokens;
    float *qkv = workspace.qkv.data(), *attended = workspace.attended.data(), *activated = workspace.activated.data();
    const auto multiply = [&](const float* x, const float* norm, const BBWeight& w, float* y, int64_t ldy, int epilogue) {
        linear(member, {x, w.k, norm, eps, &w, rows, y, ldy, epilogue}, workspace.activations);
    };
    for (const BBLayer* layer = layers; layer < layers + num_layers; layer++) {
        const Cache cache(layer->cache, batch, layer->attention);
        multiply(hidden, layer->input_norm, layer->qkv, qkv, layer->qkv.n, BB_STORE);
        rotate_and_store(member, qkv, cache, batch, layer->attention, layer->q_norm, layer->k_norm);
        attend(member, qkv, cache, batch, layer->attention, workspace.plan, attended);
        multiply(attended, nullptr, layer->o, hidden, hidden_size, BB_ADD);
        multiply(hidden, layer->post_attention_norm, layer->gate_up, activated, layer->down.k, BB_SWIGLU);
        multiply(activated, nullptr, layer->down, hidden, hidden_size, BB_ADD);
    }
}

}  // namespace bb
