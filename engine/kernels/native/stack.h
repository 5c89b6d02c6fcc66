// A whole decoder in one region of the team: a step at batch 1 pays for one call, not for five a layer.
#pragma once

#include "attention.h"
#include "linear.h"

namespace bb {

// What a layer consists of, in the order of its ops.
enum StackOp { QKV, ROTATE, ATTEND, O, GATE_UP, DOWN, NUM_STACK_OPS };

// Buffers that live from call to call; sized by the caller before the region starts.
struct Workspace {
    Activations activations;
    AttentionPlan plan;
    std::vector<float> qkv, attended, activated;
    std::vector<float> kept;  // hidden states of the wanted tokens, side by side
    std::vector<Leader> leaders;
    int64_t op_ns[NUM_STACK_OPS] = {};  // spent by the calling thread in each kind of op, until somebody reads it

    void reserve_stack(const BBLayer* layers, int num_layers, int64_t tokens);
};

// Runs the layers over hidden[tokens, hidden_size], in place. Of tokens that are not wanted the last layer computes no
// more than attention, and where none is wanted no more than keys and values.
void decode(Member& member, float* hidden, int hidden_size, const BBLayer* layers, int num_layers, const BBBatch& batch,
            float eps, Workspace& workspace);

}  // namespace bb
