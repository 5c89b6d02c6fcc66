// What this machine can do at best: bytes read, float and integer operations a second. Shared by a team.
#pragma once

#include "threads.h"

namespace bb {

double measure_read(Member& member, const float* data, int64_t count);
double measure_fma(Member& member);
double measure_int16(Member& member);

}  // namespace bb
