// Choosing a token from a row of logits.
#include "sampling.h"

#include <algorithm>
#include <limits>

#include "simd.h"

namespace bb {
namespace {

int argmax(const float* row, int size) {
    const F none = set(-std::numeric_limits<float>::infinity());
    F top = none;
    int i = 0;
    for (; i + LANES <= size; i += LANES) top = max(load(row + i), top);  // max keeps the second where one is NaN
    float best = max_lanes(top);
    for (; i < size; i++) best = row[i] > best ? row[i] : best;
    const float* at = std::find(row, row + size, best);
    return at == row + size ? 0 : int(at - row);
}

}  // namespace

void argmax_rows(Member& member, const float* logits, int rows, int vocab, int64_t* out) {
    member.share(rows, [&](int row) { out[row] = argmax(logits + int64_t(row) * vocab, vocab); });
}

}  // namespace bb
