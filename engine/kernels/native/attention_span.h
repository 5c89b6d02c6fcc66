// A span of 256 slots of one request and kv head, and what every way to attend to it shares.
#pragma once

#include <algorithm>
#include <limits>

#include "attention.h"

namespace bb {

constexpr int SPAN = 256, SUB_BLOCKS = SPAN / SLOTS;
constexpr float NONE = -std::numeric_limits<float>::infinity();

// Sub-blocks [begin, end) of a span, and the number of its slots that hold the tile's context.
struct Span {
    const uint8_t *keys[SUB_BLOCKS], *values[SUB_BLOCKS];
    int begin, end, slots;
};

// The slots of a span that a row attends to; may lie outside of it.
struct Visible {
    int begin, end;
};

// A span's result: weighted sums of the values, and what merges them with those of other spans.
struct Partial {
    float *out, *peak, *total;  // [rows, dim], [rows], [rows]
};

// Hides the scores of a row that are not visible; returns what is subtracted from all before they are raised.
inline F hide_and_find_peak(float* scores, const Span& span, Visible visible, float& peak) {
    const int first = span.begin * SLOTS, last = span.end * SLOTS;
    for (int i = first; i < std::min(visible.begin, last); i++) scores[i] = NONE;
    for (int i = std::max(first, visible.end); i < last; i++) scores[i] = NONE;
    F top = load(scores + first);
    for (int i = first + LANES; i < last; i += LANES) top = max(top, load(scores + i));
    peak = max_lanes(top);
    return set(std::max(peak, std::numeric_limits<float>::lowest()));
}

}  // namespace bb
