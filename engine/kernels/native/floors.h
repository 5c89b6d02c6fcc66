// What this machine can do at best: bytes read, float and integer operations a second.
//
// The clock runs outside the region, around the whole of it: a member that comes late to a phase finds it done by the
// others, and a clock started there would show a rate that no machine has.
#pragma once

#include "threads.h"

namespace bb {

double measure_read(Team& team, const float* data, int64_t count);
double measure_fma(Team& team);
double measure_int16(Team& team);  // int8 weights times int16 activations
double measure_int8(Team& team);   // int4 weights times int8 activations

}  // namespace bb
