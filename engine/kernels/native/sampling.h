// Choosing a token from a row of logits: the likeliest, or a draw. Called by every member of a team, a row at a time.
//
// A draw is the token with the largest scaled logit plus noise among those that top_k, top_p and min_p leave; the
// lowest id among equals. Noise is the hash of engine/sampling/noise.py: a function of seed, position and token. A NaN
// counts as a token that must not come.
#pragma once

#include <cstdint>

#include "threads.h"

namespace bb {

// How each row picks its token; the fields of engine/kernels/sample/rows.py.
struct Draws {
    const float* temperature;  // [rows]; 0: the likeliest token
    const int32_t* top_k;      // [rows]; 0: all
    const float* top_p;        // [rows]; 1: all
    const float* log_min_p;    // [rows]; -inf: all
    const int64_t* keys;       // [rows, 2]
};

// Which tokens each row has seen, each once, and what they cost; the fields of engine/kernels/sample/rows.py.
struct Seen {
    const int32_t *starts, *ids, *counts;  // row r owns ids[starts[r]] …; count 0: in the prompt only
    const float *repetition, *frequency, *presence;
};

// A token of each row of processed logits[rows, vocab].
void draw_rows(Member& member, const float* logits, int rows, int vocab, const Draws& draws, int64_t* out);

// Repetition over all seen tokens, then frequency and presence over those of the output, on logits[rows, vocab].
void penalise_rows(float* logits, int rows, int vocab, const Seen& seen);

}  // namespace bb
