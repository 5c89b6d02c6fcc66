// Choosing a token from a row of logits.
#pragma once

#include <cstdint>

#include "threads.h"

namespace bb {

// Index of the largest of logits[rows, vocab], the lowest one of equals; a NaN counts as smaller than any number.
void argmax_rows(Member& member, const float* logits, int rows, int vocab, int64_t* out);

}  // namespace bb
