// y (op)= rms_norm(x) W^T + bias for packed weights; called by every member of a team.
#pragma once

#include <vector>

#include "linear_tiles.h"
#include "linear_widened.h"
#include "threads.h"
#include "weights.h"

namespace bb {

// Rows of x converted to what a weight format multiplies with; `padded_k` values a row.
struct Activations {
    std::vector<float> values;      // float formats
    std::vector<int16_t> int16;     // int8, int4
    std::vector<int8_t> high, low;  // int4_a8; int4 of few rows
    std::vector<uint8_t> is_split;  // a group of these: 256 high + low, not high alone
    std::vector<TileGroup> tiles;   // all of it where integers are multiplied by tiles
    std::vector<float> scale, sum;  // a group of 32: of the integers, and scale times their sum

    void reserve(int64_t rows, const BBWeight& w);
    Bytes bytes(int64_t value, int64_t group) const { return {&high[value], &low[value], &is_split[group]}; }
};

// The largest output of a row, the lowest channel of equals; channel -1: none that is a number.
struct Leader {
    float value;
    int32_t channel;
};

struct Linear {
    const float* x = nullptr;  // [rows, w.k], rows ldx apart
    int64_t ldx = 0;
    const float* norm = nullptr;  // [w.k]; null: no norm
    float eps = 0;
    const BBWeight* w = nullptr;
    int rows = 0;
    float* y = nullptr;  // [rows, w.n], or [rows, w.n / 2] for BB_SWIGLU; rows ldy apart; null for LEADERS
    int64_t ldy = 0;
    int epilogue = BB_STORE;         // a BBEpilogue, or LEADERS
    Leader* leaders = nullptr;       // for LEADERS: [count_chunks, rows], in ascending order of channels
    const BBWeight* next = nullptr;  // multiplied next: fetched while others are still at this one
};

// Outputs are compared instead of stored: the largest of each row and chunk of channels is kept.
constexpr int LEADERS = -1;
// Chunks of channels that `linear` deals out to a team.
int count_chunks(const BBWeight& w, int team_size);

// Fetches the first of the member's own part of a matrix, bit by bit, while it has nothing else to do.
class FetchOwn {
public:
    FetchOwn(const Member& member, const BBWeight* w);  // null: nothing
    bool operator()();                                  // false: it is all under way

private:
    const uint8_t *at_ = nullptr, *end_ = nullptr;
};

// `shared` must hold `reserve(rows, w)`.
void linear(Member& member, const Linear& op, Activations& shared);

}  // namespace bb
