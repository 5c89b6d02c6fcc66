// A whole decoder in one region of the team: a step at batch 1 pays for one call, not for five a layer.
#pragma once

#include "attention.h"
#include "linear.h"

namespace bb {

// Buffers that live from call to call; sized by the caller before the region starts.
struct Workspace {
    Activations activations;
    AttentionPlan plan;
    std::vector<float> qkv, attended, activated;
    std::vector<Leader> leaders;

    void reserve_stack(const BBLayer* layers, int num_layers, int64_t tokens);
};

// Runs the layers over hidden[tokens, hidden_size], in place.
void decode(Member& member, float* hidden, int hidden_size, const BBLayer* layers, int num_layers, const BBBatch& batch,
            float eps, Workspace& workspace);

}  // namespace bb
